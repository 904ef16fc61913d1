"""An image that is still to be made: a source, and what is to be done to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.augment.operation import Operation, Size

# RGB; an array is height x width x 3, uint8. (Of other arrays views live within one step of a
# plan.) Views share it and do not write to it.
Source = Image.Image | NDArray[np.uint8]


@dataclass(frozen=True)
class View:
    source: Source
    size: Size  # after `ops`
    ops: tuple[Operation, ...] = ()

    @classmethod
    def of(cls, source: Source) -> View:
        return cls(source, size_of(source))

    def then(self, ops: Sequence[Operation]) -> View:
        if not ops:
            return self
        size = self.size
        for op in ops:
            size = op.size(size)
        return View(self.source, size, (*self.ops, *ops))


def size_of(source: Source) -> Size:
    if isinstance(source, Image.Image):
        return source.height, source.width
    return source.shape[0], source.shape[1]


def as_view(image: Any) -> View | None:
    """Of an RGB image. Other results of a transform have no view."""
    if isinstance(image, View):
        return image
    if isinstance(image, Image.Image) and image.mode == "RGB":
        return View.of(image)
    return None
