"""The compiled back-end: Pillow's operations as loops that use a CPU well, equal to the bit.

JPEG files are decoded by simplejpeg, without the detour over a PIL image. What is not compiled
(another interpolation, a crop beyond the image, an operation of a user's own) is done by Pillow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode

from sslengine.data.decode.decoding import Decoder
from sslengine.data.plan import ops as plain
from sslengine.data.plan.backend import Backend
from sslengine.data.plan.kernels_blur import blur, box_of
from sslengine.data.plan.kernels_colour import (
    blend_with,
    grey,
    mean_luminance,
    saturate,
    solarize,
    turn_hue,
)
from sslengine.data.plan.kernels_levels import autocontrast, equalize
from sslengine.data.plan.kernels_resize import COLUMNS_MAY_COME_FIRST, interleaved, resize
from sslengine.data.plan.kernels_sharpness import sharpened
from sslengine.data.plan.ops import Op, Size
from sslengine.data.plan.view import Source
from sslengine.registry import register_augment_backend

Planes = NDArray[np.uint8]  # 3 x height x width, of one view alone: changed in place
FILTERS = (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)
# A box blur of Pillow costs the same at any reach; ours becomes slower than it.
FAR = 12


@register_augment_backend("numba")
class CompiledBackend(Backend):
    def decode(self, encoded: bytes, decoder: Decoder) -> Source:
        image = decoder.opened(encoded)  # Pillow's word on what is an image, for 2 % of the time
        if _is_plain_jpeg(image) and decoder.mode == "RGB" and not decoder.exif_rotation:
            try:
                return simplejpeg.decode_jpeg(encoded, "RGB")  # type: ignore[attr-defined, no-any-return]
            except ValueError:
                pass  # it is stricter: Pillow may still make something of it
        return decoder.pixels(image)

    def image(self, source: Source, ops: Sequence[Op]) -> Image.Image:
        if not ops and isinstance(source, Image.Image):
            return source.copy()
        return Image.fromarray(self._array(source, ops))

    def tensor(self, source: Source, ops: Sequence[Op]) -> Tensor:
        return torch.from_numpy(_rendered(source, ops))

    def tensor_above(self, source: Source, ops: Sequence[Op], below: NDArray[np.uint8]) -> Tensor:
        room = below.shape[1]
        whole = _rendered(source, ops, room)
        whole[:, whole.shape[1] - room :] = below
        return torch.from_numpy(whole)

    def rendered(self, source: Source, ops: Sequence[Op]) -> Source:
        return self._array(source, ops)

    def _array(self, source: Source, ops: Sequence[Op]) -> NDArray[np.uint8]:
        return interleaved(_rendered(source, ops)) if ops else np.asarray(source)


def _is_plain_jpeg(image: Any) -> bool:
    return isinstance(image, Image.Image) and (image.format, image.mode) == ("JPEG", "RGB")


def _rendered(source: Source, ops: Sequence[Op], room: int = 0) -> Planes:
    """A crop makes planes of the source's own pixels; what follows changes these. room: rows that
    are left free below."""
    pixels = np.ascontiguousarray(source)
    crop, flip, ops = _begin(ops, pixels.shape[:2])
    planes = _cropped(crop, pixels, flip, 0 if ops else room)
    for op in ops:
        known = _is_compiled(op, planes.shape[1:])
        planes = CHANGES[type(op)](op, planes) if known else _by_pillow(op, planes)
    return np.pad(planes, ((0, 0), (0, room), (0, 0))) if ops and room else planes


def _begin(ops: Sequence[Op], size: Size) -> tuple[plain.Crop, bool, Sequence[Op]]:
    """The crop, be it one of the whole image; whether it flips; the operations that follow."""
    if ops and isinstance(ops[0], plain.Crop) and _is_compiled(ops[0], size):
        flip = len(ops) > 1 and type(ops[1]) is plain.FlipLeftRight
        return ops[0], flip, ops[2 if flip else 1 :]
    return plain.Crop(0, 0, *size, to=size), False, ops


def _is_compiled(op: Op, size: tuple[int, ...]) -> bool:
    if type(op) is not plain.Crop:
        return type(op) in CHANGES
    within = 0 <= op.top <= size[0] - op.height and 0 <= op.left <= size[1] - op.width
    return within and (op.interpolation in FILTERS or op.to == (op.height, op.width))


def _cropped(
    op: plain.Crop, pixels: NDArray[np.uint8], flip: bool = False, room: int = 0
) -> Planes:
    box = (op.top, op.left, op.height, op.width)
    cubic = op.interpolation == InterpolationMode.BICUBIC
    # Made here: what a kernel returns takes it longer to wrap.
    planes = np.empty((3, op.to[0] + room, op.to[1]), np.uint8)
    resize(pixels, box, op.to, cubic, flip, COLUMNS_MAY_COME_FIRST, planes)
    return planes


def _by_pillow(op: Op, planes: Planes) -> Planes:
    pixels = np.asarray(op.on_pil(Image.fromarray(interleaved(planes))))
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _blurred(op: plain.Blur, planes: Planes) -> Planes:
    reach, near, far = box_of(op.radius)
    if reach > FAR:
        return _by_pillow(op, planes)
    blur(planes, reach, near, far)
    return planes


def _in_place(kernel: Callable[[Any, Planes], object]) -> Callable[[Any, Planes], Planes]:
    def change(op: Any, planes: Planes) -> Planes:
        kernel(op, planes)
        return planes

    return change


CHANGES: dict[type[Op], Callable[[Any, Planes], Planes]] = {
    plain.Crop: lambda op, planes: _cropped(op, interleaved(planes)),
    # Copies: of one column, a view with a negative stride counts as contiguous.
    plain.FlipLeftRight: lambda op, planes: planes[:, :, ::-1].copy(),
    plain.Brightness: _in_place(lambda op, planes: blend_with(planes, 0, op.factor)),
    plain.Contrast: _in_place(
        lambda op, planes: blend_with(planes, mean_luminance(planes), op.factor)
    ),
    plain.Saturation: _in_place(lambda op, planes: saturate(planes, op.factor)),
    plain.Hue: _in_place(lambda op, planes: turn_hue(planes, op.as_byte)),
    plain.Grey: _in_place(lambda op, planes: grey(planes)),
    plain.Solarize: _in_place(lambda op, planes: solarize(planes, op.threshold)),
    plain.Posterize: _in_place(lambda op, planes: np.bitwise_and(planes, op.kept, out=planes)),
    plain.Invert: _in_place(lambda op, planes: np.invert(planes, out=planes)),
    plain.AutoContrast: _in_place(lambda op, planes: autocontrast(planes)),
    plain.Equalize: _in_place(lambda op, planes: equalize(planes)),
    plain.Sharpness: lambda op, planes: sharpened(planes, op.factor),
    plain.QuarterTurns: lambda op, planes: np.rot90(planes, op.times, (1, 2)).copy(),
    plain.Blur: _blurred,
}
