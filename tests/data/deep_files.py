"""Files of more than 8 bits, as other programs write them."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest


def numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    draw = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return draw.normal(size=shape).astype(dtype)
    low, high = max(np.iinfo(dtype).min, -(2**20)), min(np.iinfo(dtype).max, 2**20)
    return draw.integers(low, high, shape, dtype, endpoint=True)


def png(values: np.ndarray, kind: int) -> bytes:
    """16 bits, by hand: a colour type, and rows without filter."""

    def chunk(name: bytes, data: bytes) -> bytes:
        total = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", total)

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, kind, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff(values: np.ndarray, **arguments: Any) -> bytes:
    tifffile = pytest.importorskip("tifffile", reason="writes TIFFs of many bands")
    file = BytesIO()
    tifffile.imwrite(file, values, **{"photometric": "minisblack", **arguments})
    return file.getvalue()
