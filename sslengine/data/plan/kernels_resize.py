"""Pillow's bilinear and bicubic resize of a part of an image, compiled.

A pass along rows and one along columns, each of which rounds to a byte, with weights of 22 bits
after the point. So the result is Pillow's to the bit, if the passes are in the same order:
Pillow 13 takes the columns first where the height shrinks clearly more than the width. (Pillow
12 does so with images a hundred times as high as wide: there a level may differ.)

Only a weighted sum of rows makes a fast loop, so an image lies on its side for the other pass.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import PIL
from numba import boolean, int32, int64, types, uint8, uint32

from sslengine.data.plan.compiling import Array, Number, inlined, kernel, subroutine
from sslengine.data.plan.ops import Size

POINT = 22
ROUND = np.int32(1 << (POINT - 1))
COLUMNS_MAY_COME_FIRST = int(PIL.__version__.split(".")[0]) >= 13

PIXELS = types.Array(uint8, 3, "C", readonly=True)
BOX, TO = types.Tuple([int64] * 4), types.Tuple([int64] * 2)
Box = tuple[int, int, int, int]  # top, left, height, width


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
def _taps(before: int, after: int, cubic: bool) -> tuple[Array, Array]:
    """For each new pixel: the first and the last (not among them) that it is made of; weights."""
    scale = before / after
    stretch = max(scale, 1.0)
    reach = stretch * (2.0 if cubic else 1.0)
    exact = np.empty(math.ceil(reach) * 2 + 1)
    spans = np.empty((after, 2), np.int64)
    weights = np.empty((after, exact.size), np.int32)
    for new in range(after):
        centre = (new + 0.5) * scale
        first = max(0, int(centre - reach + 0.5))
        last = min(before, int(centre + reach + 0.5))
        spans[new] = first, last
        total = 0.0
        for tap in range(last - first):
            x = (first + tap - centre + 0.5) * (1.0 / stretch)
            exact[tap] = _cubic(x) if cubic else _triangle(x)
            total += exact[tap]
        for tap in range(last - first):
            weight = exact[tap] / total * (1 << POINT)
            weights[new, tap] = int32(weight - 0.5 if weight < 0 else weight + 0.5)
    return spans, weights


@subroutine
def _weigh_rows(rows: Array, taps: tuple[Array, Array], out: Array) -> None:
    """Each new row is a weighted sum of some old ones."""
    spans, weights = taps
    sums = np.empty(rows.shape[1], np.int32)
    for new in range(out.shape[0]):
        sums[:] = ROUND
        first, last = spans[new]
        for tap in range(last - first):
            weight, row = weights[new, tap], rows[first + tap]
            for x in range(sums.size):
                sums[x] = int32(sums[x] + weight * row[x])
        into = out[new]
        for x in range(sums.size):
            into[x] = uint8(min(max(sums[x] >> POINT, 0), 255))


@inlined
def _pixel(row: Array, x: int) -> Number:
    """And a byte of the next one, which nobody looks at: so it is one load of four bytes."""
    three = uint32(row[3 * x]) | uint32(row[3 * x + 1]) << 8 | uint32(row[3 * x + 2]) << 16
    return three | uint32(row[3 * x + 3]) << 24


@subroutine
def _on_its_side(image: Array, top: int, left: int, height: int, width: int) -> Array:
    """A part of height x width x 3 -> width x height x 4: in memory, a pixel is one number.

    Four rows at a time, as a stretch of the new memory takes pixels of as many rows.
    """
    out = np.empty((width, height), np.uint32)
    line = 3 * image.shape[1]
    rows = image.reshape(-1)[top * line + 3 * left :]
    for y in range(0, height - 3, 4):
        a, b, c, d = (
            rows[y * line :],
            rows[(y + 1) * line :],
            rows[(y + 2) * line :],
            rows[(y + 3) * line :],
        )
        for x in range(width - 1):
            to = out[x, y : y + 4]
            to[0], to[1], to[2], to[3] = _pixel(a, x), _pixel(b, x), _pixel(c, x), _pixel(d, x)
    for y in range(height - height % 4, height):
        row = rows[y * line :]
        for x in range(width - 1):
            out[x, y] = _pixel(row, x)
    for y in range(height):  # after the last column there may be no byte
        red, green, blue = image[top + y, left + width - 1]
        out[width - 1, y] = uint32(red) | uint32(green) << 8 | uint32(blue) << 16
    return out.view(np.uint8)


@subroutine
def _upright(rows: Array, flip: bool) -> Array:
    """width x height x 4 -> 3 x height x width"""
    pixels = rows.view(np.uint32)
    width, height = pixels.shape
    out = np.empty((3, height, width), np.uint8)
    for y in range(height):
        red, green, blue = out[0, y], out[1, y], out[2, y]
        for x in range(width):
            pixel = pixels[width - 1 - x if flip else x, y]
            red[x], green[x], blue[x] = uint8(pixel), uint8(pixel >> 8), uint8(pixel >> 16)
    return out


@kernel(numba.uint8[:, :, ::1](PIXELS, BOX, TO, boolean, boolean, boolean))
def resize(
    image: Array, box: Box, to: Size, cubic: bool, flip: bool, columns_may_come_first: bool
) -> Array:
    """height x width x 3 -> 3 x height x width, of the box. It lies within: nothing checks that."""
    top, left, old_height, old_width = box
    height, width = to
    by_row, by_column = _taps(old_height, height, cubic), _taps(old_width, width, cubic)
    less = old_height - height
    if columns_may_come_first and less > 0 and less > 2 * (old_width - width):
        part = image[top : top + old_height, left : left + old_width]
        rows = np.ascontiguousarray(part).reshape(old_height, old_width * 3)
        low = np.empty((height, old_width * 3), np.uint8)
        _weigh_rows(rows, by_row, low)
        side = _on_its_side(low.reshape(height, old_width, 3), 0, 0, height, old_width)
        narrow = np.empty((width, height * 4), np.uint8)
        _weigh_rows(side, by_column, narrow)
        return _upright(narrow, flip)
    narrow = np.empty((width, old_height * 4), np.uint8)
    _weigh_rows(_on_its_side(image, top, left, old_height, old_width), by_column, narrow)
    planes = _upright(narrow, flip)
    out = np.empty((3, height, width), np.uint8)
    for channel in range(3):
        _weigh_rows(planes[channel], by_row, out[channel])
    return out


@kernel(numba.uint8[:, :, ::1](numba.uint8[:, :, ::1]))
def interleaved(planes: Array) -> Array:
    """3 x height x width -> height x width x 3"""
    _, height, width = planes.shape
    out = np.empty((height, width, 3), np.uint8)
    for y in range(height):
        red, green, blue, row = planes[0, y], planes[1, y], planes[2, y], out[y]
        for x in range(width):
            row[x, 0], row[x, 1], row[x, 2] = red[x], green[x], blue[x]
    return out
