"""PNG files whose colours have 16 bits, of which Pillow keeps 8.

Each byte of a row is stored less a prediction from its left, upper and upper left neighbours.
Pixels that lie on one diagonal do not depend on each other, and are computed together.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# By the colour type: grey, RGB, and these with alpha.
BANDS = {0: 1, 2: 3, 4: 2, 6: 4}
# Of each pass of an interlaced file: its first pixel and how far the next one is, across and down.
PASSES = ((0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2),
          (0, 1, 1, 2))  # fmt: skip
WHOLE = ((0, 1, 0, 1),)


def decode_16_bits(encoded: bytes) -> NDArray[np.uint16]:
    """Height x width x bands."""
    width, height, _, kind, _, _, interlaced = struct.unpack_from(">IIBBBBB", encoded, 16)
    bands = BANDS[kind]
    passes = [
        (slice(y, None, down), slice(x, None, across), len(range(y, height, down)),
         len(range(x, width, across)))
        for x, across, y, down in (PASSES if interlaced else WHOLE)
    ]  # fmt: skip
    passes = [each for each in passes if each[2] and each[3]]
    expected = sum(rows * (1 + columns * bands * 2) for _, _, rows, columns in passes)
    data = zlib.decompressobj().decompress(b"".join(_image_data(encoded)), expected)
    if len(data) < expected:
        raise OSError("the file is cut off")
    values, begin = np.empty((height, width, bands), np.uint16), 0
    for down, across, rows, columns in passes:
        size = rows * (1 + columns * bands * 2)
        stored = np.frombuffer(data, np.uint8, size, begin).reshape(rows, -1)
        pixels = _unfiltered(stored[:, 0], stored[:, 1:].reshape(rows, columns, bands * 2))
        values[down, across] = pixels.view(">u2")
        begin += size
    return values


def _image_data(encoded: bytes) -> Iterator[bytes]:
    place = 8
    while place + 8 <= len(encoded):
        length, name = struct.unpack_from(">I4s", encoded, place)
        if name == b"IDAT":
            yield encoded[place + 8 : place + 8 + length]
        place += length + 12


def _unfiltered(filters: NDArray[np.uint8], stored: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """stored: rows x columns x bytes of a pixel."""
    worst = int(np.max(filters))
    if worst > 4:
        raise OSError(f"a row has filter {worst}, and there are filters 0 to 4")
    rows, columns, size = stored.shape
    pixels = np.empty_like(stored)
    # Of the two diagonals before, with a row of zeros above the first.
    before, before_that = np.zeros((2, rows + 1, size), np.int16)
    for step in range(rows + columns - 1):
        y = np.arange(max(0, step - columns + 1), min(rows, step + 1))
        x = step - y
        predicted = _predicted(filters[y, None], before[y + 1], before[y], before_that[y])
        pixels[y, x] = stored[y, x] + predicted.astype(np.uint8)  # modulo 256
        current = np.zeros_like(before)
        current[y + 1] = pixels[y, x]
        before, before_that = current, before
    return pixels


def _predicted(
    filters: NDArray[np.uint8],
    left: NDArray[np.int16],
    up: NDArray[np.int16],
    corner: NDArray[np.int16],
) -> NDArray[np.int16]:
    to_left, to_up = np.abs(up - corner), np.abs(left - corner)
    to_corner = np.abs(left + up - 2 * corner)
    nearest = np.where(to_up <= to_corner, up, corner)
    nearest = np.where((to_left <= to_up) & (to_left <= to_corner), left, nearest)
    return np.choose(filters, [np.zeros_like(left), left, up, (left + up) // 2, nearest])
