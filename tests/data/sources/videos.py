"""Small videos, which PyAV writes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


def write_video(
    path: Path, frames: Iterable[Any], codec: str, pixels: str = "yuv420p", **options: str
) -> Path:
    """frames: images or arrays. A key frame every twelve. options: of the codec."""
    av: Any = pytest.importorskip("av", reason="reads and writes videos")
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = [np.asarray(each) for each in frames]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width = arrays[0].shape[:2]
        stream.pix_fmt, stream.codec_context.gop_size = pixels, 12
        stream.options = options
        for each in arrays:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(each, format="rgb24")))
        container.mux(stream.encode())
    return path


def write_lossless(path: Path, frames: Iterable[Image.Image]) -> Path:
    return write_video(path, frames, "png", "rgb24")


def ramp(count: int = 50, side: int = 32) -> list[Any]:
    """Frame i has the brightness 5 i."""
    return [np.full((side, side, 3), 5 * number, np.uint8) for number in range(count)]


def noise(count: int = 50, side: int = 64) -> list[Any]:
    return list(np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8))


def cut(path: Path, to: Path) -> Path:
    """From the second key frame on, without decoding, as `ffmpeg -ss ... -c copy` does."""
    av: Any = pytest.importorskip("av", reason="reads and writes videos")
    with av.open(str(path)) as container, av.open(str(to), "w") as written:
        stream = written.add_stream_from_template(container.streams.video[0])
        packets = [each for each in container.demux(video=0) if each.size]
        second = [number for number, each in enumerate(packets) if each.is_keyframe][1]
        start = packets[second].pts
        for each in packets[second:]:
            each.pts, each.dts, each.stream = each.pts - start, each.dts - start, stream
            written.mux(each)
    return to


def turned(path: Path, to: Path) -> Path:
    """The same .mp4, to be shown turned by 90 degrees clockwise, as a phone says it: in the matrix
    of the track's header (ISO 14496-12, tkhd, version 0)."""
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 4 + 4 + 20 + 8 + 8
    one = 1 << 16
    content[start : start + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 1 << 30)
    to.write_bytes(content)
    return to
