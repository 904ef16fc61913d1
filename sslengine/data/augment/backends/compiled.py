"""The compiled back-end: Pillow's operations as loops that use a CPU well, equal to the bit.

JPEG files are decoded by simplejpeg, without the detour over a PIL image. What is not compiled
(another interpolation, a crop beyond the image, an operation of a user's own) is done by Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sslengine.data.augment import operations  # noqa: F401 - whose kernels are compiled here
from sslengine.data.augment.backends.base import Backend
from sslengine.data.augment.compiling import compile_kernels
from sslengine.data.augment.operation import Operation, Planes, Size, interleaved
from sslengine.data.augment.operations.crop import Crop
from sslengine.data.augment.operations.flip import FlipLeftRight
from sslengine.data.augment.view import Source
from sslengine.data.decode.decoding import Decoder
from sslengine.registry import register_augment_backend

# As this module is imported, so that forked workers have them.
compile_kernels()


@register_augment_backend("numba")
class CompiledBackend(Backend):
    def decode(self, encoded: bytes, decoder: Decoder) -> Source:
        image = decoder.opened(encoded)  # Pillow's word on what is an image, for 2 % of the time
        if decoder.is_plain_jpeg(image):
            try:
                return simplejpeg.decode_jpeg(encoded, "RGB")  # type: ignore[attr-defined, no-any-return]
            except ValueError:
                pass  # it is stricter: Pillow may still make something of it
        return decoder.pixels(image)

    def image(self, source: Source, ops: Sequence[Operation]) -> Image.Image:
        if not ops and isinstance(source, Image.Image):
            return source.copy()
        return Image.fromarray(self.rendered(source, ops))

    def tensor(self, source: Source, ops: Sequence[Operation]) -> Tensor:
        return torch.from_numpy(_planes(source, ops))

    def rendered(self, source: Source, ops: Sequence[Operation]) -> NDArray[np.uint8]:
        return interleaved(_planes(source, ops)) if ops else np.asarray(source)


def _planes(source: Source, ops: Sequence[Operation]) -> Planes:
    """A crop makes planes of the source's own pixels, and flips them if that comes next; what
    follows changes these."""
    pixels = np.ascontiguousarray(source)
    size: Size = pixels.shape[:2]
    crop, first = Crop(0, 0, *size, to=size), 0
    if ops and type(ops[0]) is Crop and ops[0].is_compiled(size):
        crop, first = ops[0], 1
    flip = first == 1 and len(ops) > 1 and type(ops[1]) is FlipLeftRight
    planes = crop.cut(pixels, flip)
    for operation in ops[first + flip :]:
        planes = operation.on_planes(planes)
    return planes
