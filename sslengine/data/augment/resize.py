"""Pillow's bilinear and bicubic resize of a box of an image, compiled.

A pass along rows and one along columns, each of which rounds to a byte, with weights of 22 bits
after the point. So the result is Pillow's to the bit, if the passes are in the same order:
Pillow 13 takes the columns first where the height shrinks clearly more than the width. (Pillow
12 does so with images a hundred times as high as wide: there a level may differ.)

Only a weighted sum of rows makes a fast loop, so a strip of some rows, small enough to stay in
the cache, lies on its side for the other pass.
"""

from __future__ import annotations

import math

import numpy as np
import PIL
from numpy.typing import NDArray

from sslengine.data.augment.compiling import Array, Number, inlined, kernel, subroutine
from sslengine.data.augment.image import Planes, Size

POINT = 22
ROUND = np.int32(1 << (POINT - 1))
COLUMNS_MAY_COME_FIRST = int(PIL.__version__.split(".")[0]) >= 13

Box = tuple[int, int, int, int]  # top, left, height, width
Taps = tuple[Array, Array]
Weights = tuple[Number, Number, Number, Number]

STRIP = 16  # rows, of which the pixels above each other are a line of the cache
BEYOND = 3


def resize(pixels: NDArray[np.uint8], box: Box, to: Size, cubic: bool) -> Planes:
    """Return the box of height x width x 3 pixels, scaled. It lies within the image."""
    # Made here: what a kernel returns takes it longer to wrap.
    planes = np.empty((3, *to), np.uint8)
    _resize(pixels, box, to, cubic, COLUMNS_MAY_COME_FIRST, planes)
    return planes


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
def _resize(
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
