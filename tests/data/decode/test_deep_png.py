"""16-bit PNG files of every filter, written by hand after the specification."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from sslengine.data.decode.deep_png import decode_16_bits

KINDS = {1: 0, 2: 4, 3: 2, 4: 6}


def chunk(name: bytes, data: bytes) -> bytes:
    total = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + total


def filtered(values: np.ndarray, filters: list[int]) -> bytes:
    """One byte after the other, as section 9 of the specification has it."""
    size, rows = values.shape[2] * 2, [row.astype(">u2").tobytes() for row in values]
    above, made = bytes(len(rows[0])), b""
    for number, row in enumerate(rows):
        kind = filters[number % len(filters)]
        made += bytes([kind])
        for place, byte in enumerate(row):
            a = row[place - size] if place >= size else 0
            b = above[place]
            c = above[place - size] if place >= size else 0
            p = a + b - c
            paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            made += bytes([(byte - (0, a, b, (a + b) // 2, paeth)[kind]) % 256])
        above = row
    return made


def png(values: np.ndarray, filters: list[int], interlaced: bool = False, parts: int = 1) -> bytes:
    height, width, bands = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, KINDS[bands], 0, 0, interlaced)
    starts = ["0808", "4808", "0448", "2404", "0224", "1202", "0112"] if interlaced else ["0101"]
    data = b""
    for x, across, y, down in (map(int, each) for each in starts):
        part = values[y::down, x::across]
        data += filtered(part, filters) if part.size else b""
    whole = zlib.compress(data)
    cut = -(-len(whole) // parts)
    pieces = [whole[begin : begin + cut] for begin in range(0, len(whole), cut)]
    body = b"".join(chunk(b"IDAT", piece) for piece in pieces)
    text = chunk(b"tEXt", b"Software\0by hand")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + text + body + chunk(b"IEND", b"")


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 65536, shape, np.uint16)


@pytest.mark.parametrize("filters", [[0], [1], [2], [3], [4], [4, 1, 3, 0, 2]], ids=str)
@pytest.mark.parametrize("bands", KINDS)
def test_every_filter(bands: int, filters: list[int]) -> None:
    values = noise(9, 7, bands)
    encoded = png(values, filters, parts=3)
    np.testing.assert_array_equal(decode_16_bits(encoded), values)
    # Pillow agrees on what it keeps: the upper bytes.
    kept = Image.open(BytesIO(encoded), formats=["PNG"])
    if bands in (3, 4):
        np.testing.assert_array_equal(np.asarray(kept), values >> 8)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 5), (17, 10)])
def test_interlaced(shape: tuple[int, int]) -> None:
    values = noise(*shape, 3)
    encoded = png(values, [4, 3, 1], interlaced=True)
    np.testing.assert_array_equal(decode_16_bits(encoded), values)
    kept = Image.open(BytesIO(encoded), formats=["PNG"])
    np.testing.assert_array_equal(np.asarray(kept), values >> 8)


def test_damaged() -> None:
    values = noise(9, 7, 3)
    with pytest.raises(OSError, match="filter 5"):
        decode_16_bits(png(values, [0]).replace(*_other_filter(values)))
    encoded = png(values, [4])
    with pytest.raises((OSError, zlib.error)):
        decode_16_bits(encoded[: len(encoded) // 2])


def _other_filter(values: np.ndarray) -> tuple[bytes, bytes]:
    data = filtered(values, [0])
    bad = bytes([5]) + data[1:]
    return chunk(b"IDAT", zlib.compress(data)), chunk(b"IDAT", zlib.compress(bad))
