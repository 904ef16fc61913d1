"""Which pixels of an image stay, and where they go: crops, resize, flips and turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms import InterpolationMode, functional

from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.image import (
    NO_LIMITS,
    Limits,
    Pixels,
    Rgb,
    Size,
    add_channels,
    interleaved,
    make_floats,
    make_pil,
    make_rgb,
    own,
    shape_like,
    size_of,
    view_planes,
)
from sslengine.data.augment.resize import Box, resize
from sslengine.data.augment.stream import below, exp_of_uniform, uniform
from sslengine.data.augment.transform import Counterpart, MakesLabel, expect
from sslengine.registry import register_transform

F: Any = functional  # takes images as well as the tensors that its hints name
BILINEAR, BICUBIC = InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
# As torch calls them.
MODES = {
    BILINEAR: "bilinear",
    BICUBIC: "bicubic",
    InterpolationMode.NEAREST: "nearest-exact",
}
TRIES = 10


# ---- operations


def crop(
    image: Any,
    box: Box,
    to: Size,
    interpolation: InterpolationMode = BILINEAR,
    limits: Limits = NO_LIMITS,
) -> Any:
    """Return a part of the image, scaled: what lies outside of the box is not seen. At scale 1 the
    pixels of an array are not copied."""
    top, left, height, width = box
    if type(image) is Rgb:
        if 0 <= top <= image.shape[0] - height and 0 <= left <= image.shape[1] - width:
            if (height, width) == to:
                return image[top : top + height, left : left + width]
            if interpolation is BILINEAR or interpolation is BICUBIC:
                return view_planes(resize(interleaved(image), box, to, interpolation is BICUBIC))
        return make_rgb(crop(make_pil(image), box, to, interpolation))
    if isinstance(image, Image.Image):
        part = image.crop((left, top, left + width, top + height))
        return part if (height, width) == to else F.resize(part, list(to), interpolation)
    return shape_like(_crop_array(add_channels(image), box, to, interpolation, limits), image)


def _crop_array(
    pixels: Pixels, box: Box, to: Size, interpolation: InterpolationMode, limits: Limits
) -> Pixels:
    """Resize in floats by torch, whose filters are Pillow's."""
    part = window(pixels, box)
    if part.shape[:2] == to:
        return part
    if interpolation not in MODES:
        raise TypeError(
            f"interpolation {interpolation.value} asks for RGB: for arrays it is one of "
            f"{', '.join(each.value for each in MODES)}."
        )
    planes = torch.from_numpy(np.ascontiguousarray(make_floats(part).transpose(2, 0, 1)))
    mode = MODES[interpolation]
    made = interpolate(planes[None], to, mode=mode, antialias=mode != "nearest-exact")
    return limits.find(pixels).round(made[0].numpy().transpose(1, 2, 0), pixels)


def window(pixels: Pixels, box: Box) -> Pixels:
    """Return a part of the image, with zeros where it reaches beyond."""
    top, left, height, width = box
    bottom, right = top + height, left + width
    part = pixels[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if part.shape[:2] == (height, width):
        return part
    frame = np.zeros((height, width, pixels.shape[2]), pixels.dtype)
    above, before = max(-top, 0), max(-left, 0)
    frame[above : above + part.shape[0], before : before + part.shape[1]] = part
    return frame


def center_on_black(image: Any, to: Size) -> Any:
    """Return the middle of the image, with black around it where it is smaller than asked for."""
    if type(image) is Rgb:
        return make_rgb(center_on_black(make_pil(image), to))
    if isinstance(image, Image.Image):
        return F.center_crop(image, list(to))
    top, left = (_begin_middle(old, new) for old, new in zip(image.shape, to))
    return shape_like(window(add_channels(image), (top, left, *to)), image)


def _begin_middle(old: int, new: int) -> int:
    """Return where the middle begins, as torchvision rounds it; less than zero on a larger
    frame."""
    return -((new - old) // 2) if new > old else round((old - new) / 2.0)


def flip(image: Any) -> Any:
    """Exchange left and right."""
    if type(image) is Rgb:
        image, planes = own(image)
        mirror(planes)
        return image
    if isinstance(image, Image.Image):
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return shape_like(add_channels(image)[:, ::-1], image)


@kernel("void(uint8[:, :, ::1])")
def mirror(planes: Array) -> None:
    """Copy each row, and read it with an index that numba knows not to be negative."""
    channels, height, width = planes.shape
    copied, last = np.empty(width, np.uint8), np.uint64(width - 1)
    for channel in range(channels):
        for y in range(height):
            row = planes[channel, y]
            for x in range(width):
                copied[x] = row[x]
            for x in range(width):
                row[x] = copied[last - np.uint64(x)]


def turn(image: Any, degrees: float) -> Any:
    """Turn counter-clockwise by 0 to 360 degrees: quarters exactly and as a whole, by any other
    angle in the old frame, black where nothing is."""
    if degrees % 90 == 0:
        return _turn_quarters(image, int(degrees) // 90) if degrees else image
    if type(image) is Rgb:
        return make_rgb(make_pil(image).rotate(degrees))
    if isinstance(image, Image.Image):
        return image.rotate(degrees)
    # Pillow turns the numbers of the pixels; zero where nothing is.
    height, width = image.shape[:2]
    numbers = np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)
    from_where = np.asarray(Image.fromarray(numbers).rotate(degrees))
    pixels = add_channels(image)
    nothing = np.zeros((1, pixels.shape[2]), pixels.dtype)
    flat = np.concatenate([nothing, pixels.reshape(-1, pixels.shape[2])])
    return shape_like(flat[from_where], image)


def _turn_quarters(image: Any, times: int) -> Any:
    if type(image) is Rgb:
        return view_planes(np.rot90(own(image)[1], times, (1, 2)).copy())
    if isinstance(image, Image.Image):
        kind = Image.Transpose
        turns = {1: kind.ROTATE_90, 2: kind.ROTATE_180, 3: kind.ROTATE_270}
        return image.transpose(turns[times])
    return shape_like(np.rot90(add_channels(image), times, (0, 1)), image)


# ---- transforms


class ResizedCrop(Counterpart):
    """RandomResizedCrop: a box of a random area and shape, wherever it fits.

    It takes the same numbers from the same stream as torchvision's `get_params`, which takes half
    as long as the resize itself: much of it is to make tensors of constants.
    """

    def __init__(self, named: Any) -> None:
        super().__init__(named)
        self.scale, self.ratio, self.to = tuple(named.scale), tuple(named.ratio), tuple(named.size)
        # In float32, as torchvision takes it.
        self.log_ratio = tuple(torch.log(torch.tensor(named.ratio)).tolist())
        self.interpolation = named.interpolation

    def change(self, image: Any) -> Any:
        return crop(image, self.draw_box(size_of(image)), self.to, self.interpolation, self.limits)

    def draw_box(self, size: Size) -> Box:
        height, width = size
        for _ in range(TRIES):
            area = height * width * uniform(*self.scale)
            ratio = exp_of_uniform(*self.log_ratio)
            part_width = round(math.sqrt(area * ratio))
            part_height = round(math.sqrt(area / ratio))
            if 0 < part_width <= width and 0 < part_height <= height:
                top = below(height - part_height + 1)
                left = below(width - part_width + 1)
                return top, left, part_height, part_width
        return self._largest_in_the_middle(height, width)

    def _largest_in_the_middle(self, height: int, width: int) -> Box:
        """Return the largest box whose shape is allowed."""
        part_height, part_width = height, width
        if width / height < min(self.ratio):
            part_height = round(width / min(self.ratio))
        elif width / height > max(self.ratio):
            part_width = round(height * max(self.ratio))
        return (height - part_height) // 2, (width - part_width) // 2, part_height, part_width


class RandomPart(Counterpart):
    """RandomCrop without padding."""

    def change(self, image: Any) -> Any:
        named: Any = self.named
        box = named.get_params(_replace_image(size_of(image)), named.size)
        return crop(image, box, box[2:], limits=self.limits)


class Middle(Counterpart):
    """CenterCrop."""

    def change(self, image: Any) -> Any:
        height, width = to = tuple(self.named.size)  # type: ignore[attr-defined]
        size = size_of(image)
        if height > size[0] or width > size[1]:
            return center_on_black(image, to)
        # As torchvision rounds them: a half to the even number.
        top, left = round((size[0] - height) / 2.0), round((size[1] - width) / 2.0)
        return crop(image, (top, left, height, width), to, limits=self.limits)


class Resized(Counterpart):
    """Resize without `max_size`."""

    def change(self, image: Any) -> Any:
        named: Any = self.named
        size = size_of(image)
        to = _find_size(named.size, size)
        if to == size:
            return image
        return crop(image, (0, 0, *size), to, named.interpolation, self.limits)


def _find_size(wanted: int | Sequence[int], size: Size) -> Size:
    """Return the new size. One number is for the shorter side; the longer follows, rounded down."""
    numbers = [wanted] if isinstance(wanted, int) else list(wanted)
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    (side,) = numbers
    height, width = size
    if height <= width:
        return side, int(side * width / height)
    return int(side * height / width), side


def _replace_image(size: Size) -> Tensor:
    """Return what torchvision takes the size from; it holds one value in memory."""
    return torch.empty(()).expand(size)


@register_transform("ImgPilResizeLargerSide")
class ImgPilResizeLargerSide:
    """The larger side becomes `size` pixels, the other follows."""

    def __init__(self, size: int = 1024) -> None:
        """size: pixels of the larger side."""
        expect(size >= 1, "size", "1 or more", size)
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        factor = self.size / max(image.size)
        width, height = (max(1, round(side * factor)) for side in image.size)
        return image.resize((width, height), Image.Resampling.BILINEAR)


@register_transform("MNISTImgPil2RGB")
class MNISTImgPil2RGB:
    """The image in RGB; with a `size`, pasted at `box` onto black of that size."""

    def __init__(self, size: int | Sequence[int] = (), box: Sequence[int] = (0, 0)) -> None:
        """
        size: width and height, or one number for both.
        box: the left and top corner.
        """
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.box = tuple(box)
        expect(len(self.size) in (0, 2), "size", "a number, two, or nothing", size)
        expect(len(self.box) == 2, "box", "the left and top corner", box)

    def __call__(self, image: Image.Image) -> Image.Image:
        if not self.size:
            return image.convert("RGB")
        canvas = Image.new("RGB", (self.size[0], self.size[1]))
        canvas.paste(image, (self.box[0], self.box[1]))
        return canvas


@register_transform("ImgRotatePil")
class ImgRotatePil(MakesLabel):
    """Turn the image counter-clockwise by label * 360 / num_angles degrees.

    Quarter turns are exact. An image that is not square is turned as a whole: cut to its
    old frame, with black where nothing is, it would give the label away.
    """

    takes_arrays = True

    def __init__(self, num_angles: int = 4, num_rotations_per_img: int = 1) -> None:
        """
        num_angles: the number of labels.
        num_rotations_per_img: 1 alone: an image has one label.
        """
        expect(num_angles >= 1, "num_angles", "1 or more", num_angles)
        one = "1, as an image has one label"
        expect(num_rotations_per_img == 1, "num_rotations_per_img", one, num_rotations_per_img)
        self.num_angles = num_angles

    def __call__(self, image: Any) -> tuple[Any, int]:
        label = int(torch.randint(self.num_angles, (1,)))
        return turn(image, 360 * label / self.num_angles), label
