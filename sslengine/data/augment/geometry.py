"""Which pixels of an image stay, and where they go: crops, resize, flips and turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch.nn.functional import interpolate
from torchvision.transforms import InterpolationMode, functional

from sslengine.data.augment.compiling import Array, Number, inlined, kernel, subroutine
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
from sslengine.data.augment.transform import (
    Counterpart,
    MakesLabel,
    below,
    exp_of_uniform,
    expect,
    uniform,
)
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

Box = tuple[int, int, int, int]  # top, left, height, width
Taps = tuple[Array, Array]
Weights = tuple[Number, Number, Number, Number]


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
                planes = np.empty((3, *to), np.uint8)
                cubic = interpolation is BICUBIC
                resize_box(interleaved(image), box, to, cubic, COLUMNS_MAY_COME_FIRST, planes)
                return view_planes(planes)
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
        # What torchvision takes the size from; it holds one value in memory.
        box = named.get_params(torch.empty(()).expand(size_of(image)), named.size)
        return crop(image, box, box[2:], limits=self.limits)


class Middle(Counterpart):
    """CenterCrop."""

    def change(self, image: Any) -> Any:
        to = tuple(self.named.size)  # type: ignore[attr-defined]
        # As torchvision rounds them; on a larger frame they are less than zero.
        top, left = (
            -((new - old) // 2) if new > old else round((old - new) / 2.0)
            for old, new in zip(size_of(image), to)
        )
        return crop(image, (top, left, *to), to, limits=self.limits)


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


@register_transform("ImgPilResizeLargerSide")
class ImgPilResizeLargerSide:
    """The larger side becomes `size` pixels, the other follows."""

    def __init__(self, size: int = 1024) -> None:
        """size: pixels of the larger side."""
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

    def __call__(self, image: Image.Image) -> Image.Image:
        if not self.size:
            return image.convert("RGB")
        canvas = Image.new("RGB", self.size)  # type: ignore[arg-type]
        canvas.paste(image, self.box)  # type: ignore[arg-type]
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
        one = "1, as an image has one label"
        expect(num_rotations_per_img == 1, "num_rotations_per_img", one, num_rotations_per_img)
        self.num_angles = num_angles

    def __call__(self, image: Any) -> tuple[Any, int]:
        label = int(torch.randint(self.num_angles, (1,)))
        return turn(image, 360 * label / self.num_angles), label


# ---- Pillow's bilinear and bicubic resize, compiled
#
# A pass along rows and one along columns, each of which rounds to a byte, with weights of 22 bits
# after the point. So the result is Pillow's to the bit, if the passes are in the same order:
# Pillow 13 takes the columns first where the height shrinks clearly more than the width. (Pillow
# 12 does so with images a hundred times as high as wide: there a level may differ.)
#
# Only a weighted sum of rows makes a fast loop, so a strip of some rows, small enough to stay in
# the cache, lies on its side for the other pass.

POINT = 22
ROUND = np.int32(1 << (POINT - 1))
COLUMNS_MAY_COME_FIRST = int(PIL.__version__.split(".")[0]) >= 13
STRIP = 16  # rows, of which the pixels above each other are a line of the cache
BEYOND = 3


@inlined
def _triangle(x: Number) -> Number:
    return max(0.0, 1.0 - abs(x))


@inlined
def _cubic(x: Number) -> Number:
    x = abs(x)
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    return (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5 if x < 2.0 else 0.0


@subroutine
def _taps(before: int, after: int, cubic: bool) -> Taps:
    """Return for each new pixel the first and the last (not among them) that it is made of, and
    weights.

    Zeros follow the weights, to a multiple of four: they weigh at most BEYOND more pixels.
    """
    scale = before / after
    stretch = max(scale, 1.0)
    reach = stretch * (2.0 if cubic else 1.0)
    exact = np.empty(math.ceil(reach) * 2 + 1)
    spans = np.empty((after, 2), np.int64)
    weights = np.zeros((after, (exact.size + 3) // 4 * 4), np.int32)
    for number in range(after):
        centre = (number + 0.5) * scale
        first = max(0, int(centre - reach + 0.5))
        last = min(before, int(centre + reach + 0.5))
        spans[number, 0], spans[number, 1] = first, last
        total = 0.0
        for tap in range(last - first):
            x = (first + tap - centre + 0.5) * (1.0 / stretch)
            exact[tap] = _cubic(x) if cubic else _triangle(x)
            total += exact[tap]
        for tap in range(last - first):
            weight = exact[tap] / total * (1 << POINT)
            weights[number, tap] = np.int32(weight - 0.5 if weight < 0 else weight + 0.5)
    return spans, weights


@inlined
def _byte(total: Number) -> Number:
    level: Number = np.int32(total)
    return np.uint8(min(max(level >> POINT, 0), 255))


@inlined
def _four(weights: Array, new: int, tap: int) -> Weights:
    return weights[new, tap], weights[new, tap + 1], weights[new, tap + 2], weights[new, tap + 3]


# Weighted sums in a column. (Of rows taken out as arrays, references would be counted, which takes
# longer than a strip's sum.)


@inlined
def _sum_two(rows: Array, y: int, x: int, by: Weights) -> Number:
    return by[0] * rows[y, x] + by[1] * rows[y + 1, x]


@inlined
def _sum_three(rows: Array, y: int, x: int, by: Weights) -> Number:
    return _sum_two(rows, y, x, by) + by[2] * rows[y + 2, x]


@inlined
def _sum_four(rows: Array, y: int, x: int, by: Weights) -> Number:
    return _sum_three(rows, y, x, by) + by[3] * rows[y + 3, x]


@subroutine
def _weigh_rows(rows: Array, taps: Taps, out: Array) -> None:
    """Make each new row a weighted sum of some old ones. After these come BEYOND rows with any
    values, which have no weight: so four can be weighed where one to four count."""
    spans, weights = taps
    sums = np.empty(rows.shape[1], np.int32)
    for new in range(out.shape[0]):
        y, count = spans[new, 0], spans[new, 1] - spans[new, 0]
        by = _four(weights, new, 0)
        if count <= 2:
            for x in range(sums.size):
                out[new, x] = _byte(ROUND + _sum_two(rows, y, x, by))
        elif count == 3:
            for x in range(sums.size):
                out[new, x] = _byte(ROUND + _sum_three(rows, y, x, by))
        elif count == 4:
            for x in range(sums.size):
                out[new, x] = _byte(ROUND + _sum_four(rows, y, x, by))
        else:
            last = (count - 1) // 4 * 4
            for x in range(sums.size):
                sums[x] = ROUND + _sum_four(rows, y, x, by)
            for tap in range(4, last, 4):
                by = _four(weights, new, tap)
                for x in range(sums.size):
                    sums[x] += _sum_four(rows, y + tap, x, by)
            by = _four(weights, new, last)
            for x in range(sums.size):
                out[new, x] = _byte(sums[x] + _sum_four(rows, y + last, x, by))


@inlined
def _load_pixel(row: Array, x: int) -> Number:
    """Load it with a byte of the next one, which is ignored: so it is one load of four bytes."""
    three = np.uint32(row[3 * x]) | np.uint32(row[3 * x + 1]) << 8 | np.uint32(row[3 * x + 2]) << 16
    return three | np.uint32(row[3 * x + 3]) << 24


@subroutine
def _lay_on_side(rows: Array, line: int, height: int, width: int, strip: Array) -> None:
    """Turn rows of three bytes a pixel, each `line` bytes after the one before it -> strip[x, y].

    Four rows at a time, as a stretch of the strip takes pixels of as many rows.
    """
    for y in range(0, height - 3, 4):
        a, b = rows[y * line :], rows[(y + 1) * line :]
        c, d = rows[(y + 2) * line :], rows[(y + 3) * line :]
        for x in range(width - 1):
            four = _load_pixel(a, x), _load_pixel(b, x), _load_pixel(c, x), _load_pixel(d, x)
            strip[x, y], strip[x, y + 1], strip[x, y + 2], strip[x, y + 3] = four
    for y in range(height - height % 4, height):
        row = rows[y * line :]
        for x in range(width - 1):
            strip[x, y] = _load_pixel(row, x)
    for y in range(height):  # after the last pixel there may be no byte
        at = y * line + 3 * (width - 1)
        strip[width - 1, y] = (
            np.uint32(rows[at]) | np.uint32(rows[at + 1]) << 8 | np.uint32(rows[at + 2]) << 16
        )


@subroutine
def _weigh_columns(rows: Array, line: int, height: int, width: int, taps: Taps, to: int) -> Array:
    """Scale such rows to `to` pixels, each one number in memory; BEYOND more rows follow."""
    out = np.empty((height + BEYOND, to), np.uint32)
    strip = np.empty((width + BEYOND, STRIP), np.uint32)
    narrow = np.empty((to, STRIP), np.uint32)
    for top in range(0, height, STRIP):
        count = min(STRIP, height - top)
        _lay_on_side(rows[top * line :], line, count, width, strip)
        _weigh_rows(strip.view(np.uint8), taps, narrow.view(np.uint8))
        for y in range(count):
            for x in range(to):
                out[top + y, x] = narrow[x, y]
    return out


@subroutine
def _copy_rows(rows: Array, line: int, height: int, length: int) -> Array:
    """Copy rows of that many bytes; BEYOND more follow."""
    out = np.empty((height + BEYOND, length), np.uint8)
    for y in range(height):
        row = rows[y * line :]
        for x in range(length):
            out[y, x] = row[x]
    return out


@subroutine
def _put_planes(pixels: Array, height: int, out: Array) -> None:
    for y in range(height):
        for x in range(pixels.shape[1]):
            pixel = pixels[y, x]
            out[0, y, x] = np.uint8(pixel)
            out[1, y, x] = np.uint8(pixel >> 8)
            out[2, y, x] = np.uint8(pixel >> 16)


@kernel(
    "void(Array(uint8, 3, 'C', True), UniTuple(int64, 4), UniTuple(int64, 2), boolean, boolean, "
    "uint8[:, :, ::1])"
)
def resize_box(
    image: Array, box: Box, to: Size, cubic: bool, columns_may_come_first: bool, out: Array
) -> None:
    """Scale the box of height x width x 3 -> `out`, 3 x height x width. It lies within the image:
    nothing checks that."""
    top, left, old_height, old_width = box
    height, width = to
    by_row = _taps(old_height, height, cubic)
    by_column = _taps(old_width, width, cubic)
    line, less = 3 * image.shape[1], old_height - height
    rows = image.reshape(-1)[top * line + 3 * left :]
    if columns_may_come_first and less > 0 and less > 2 * (old_width - width):
        low = np.empty((height, 3 * old_width), np.uint8)
        _weigh_rows(_copy_rows(rows, line, old_height, 3 * old_width), by_row, low)
        made = _weigh_columns(low.reshape(-1), 3 * old_width, height, old_width, by_column, width)
    else:
        narrow = _weigh_columns(rows, line, old_height, old_width, by_column, width)
        made = np.empty((height, width), np.uint32)
        _weigh_rows(narrow.view(np.uint8), by_row, made.view(np.uint8))
    _put_planes(made, height, out)
