"""The middle of the image, with black around it where it is smaller than asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision.transforms import functional

from sslengine.data.augment.arrays import Limits, Pixels, window
from sslengine.data.augment.operation import Operation, Size

F: Any = functional  # takes images as well as the tensors that its hints name


@dataclass(frozen=True)
class CenterOnBlack(Operation):
    to: Size

    def on_pil(self, image: Image.Image) -> Any:
        return F.center_crop(image, list(self.to))

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        height, width = self.to
        top, left = (_before(old, new) for old, new in zip(pixels.shape, self.to))
        return window(pixels, top, left, height, width)

    def size(self, before: Size) -> Size:
        return self.to


def _before(old: int, new: int) -> int:
    """Where the middle begins, as torchvision rounds it; less than zero on a larger frame."""
    return -((new - old) // 2) if new > old else round((old - new) / 2.0)
