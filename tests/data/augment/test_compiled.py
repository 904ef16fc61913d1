"""Files become the pixels that Pillow makes of them. In batches: tests/data/test_determinism.py."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sslengine.data.augment.backend import build_backend
from sslengine.data.augment.image import Rgb
from sslengine.data.decode.decoding import Decoder
from tests.data.augment.photos import photo

pytest.importorskip("sslengine.data.augment.compiled", reason="needs numba and simplejpeg")

COMPILED = build_backend("numba")
DECODER = Decoder("config.DATA.TRAIN", max_pixels=100_000, exif_rotation=False)


# ---- decoding


def encoded(image: Image.Image, kind: str = "JPEG", **arguments: Any) -> bytes:
    into = io.BytesIO()
    image.save(into, kind, **arguments)
    return into.getvalue()


FILES = {
    "420": encoded(photo(0, 61, 43), quality=90),
    "444": encoded(photo(1), quality=95, subsampling=0),
    "422": encoded(photo(2, 33, 47), quality=60, subsampling=1),
    "progressive": encoded(photo(3), progressive=True, optimize=True),
    "restarts": encoded(photo(4), restart_marker_rows=1),
    "rgb": encoded(photo(5), keep_rgb=True),
    "turned": encoded(
        photo(6), exif=b"Exif\0\0MM\0*\0\0\0\b\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
    ),
    "grey": encoded(photo(7).convert("L")),
    "cmyk": encoded(photo(8).convert("CMYK")),
    "one pixel": encoded(photo(9, 1, 1)),
    "png": encoded(photo(10), "PNG"),
    "webp": encoded(photo(12), "WEBP"),
    "behind the end": encoded(photo(13)) + b"more",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("exif_rotation", [False, True])
def test_decoded_as_by_pillow(name: str, exif_rotation: bool) -> None:
    decoder = Decoder("config.DATA.TRAIN", 100_000, exif_rotation)
    decoded = COMPILED.decode(FILES[name], decoder)
    assert np.array_equal(np.asarray(decoded), np.asarray(decoder(FILES[name])))


@pytest.mark.parametrize("mode", ["L", "stored"])
def test_other_modes_are_the_decoders(mode: str) -> None:
    decoder = Decoder("config.DATA.TRAIN", 100_000, False, mode)
    for name in ("420", "grey", "png"):
        made, expected = COMPILED.decode(FILES[name], decoder), decoder(FILES[name])
        assert type(made) is (Rgb if expected.mode == "RGB" else type(expected))
        assert np.array_equal(np.asarray(made), np.asarray(expected))


@pytest.mark.parametrize("name", ["progressive", "png"])
def test_what_is_decoded_may_be_shared(name: str) -> None:
    made = COMPILED.decode(FILES[name], DECODER)
    assert type(made) is Rgb
    assert not made.flags.writeable


def outcome(decode: Any, data: bytes) -> Any:
    """The pixels, or what was raised."""
    try:
        return np.asarray(decode(data)).tobytes()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", ["420", "progressive", "restarts"])
def test_damaged_files_are_as_readable_as_by_pillow(name: str) -> None:
    """Cut off anywhere, or with any byte changed: the same pixels or the same error."""
    whole, draw = FILES[name], np.random.default_rng(0)
    damaged = [whole[:length] for length in range(0, len(whole), len(whole) // 60)]
    for place in draw.integers(0, len(whole), 250):
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.integers(8)
        damaged.append(bytes(changed))
    for data in damaged:
        made = outcome(lambda file: COMPILED.decode(file, DECODER), data)
        assert made == outcome(DECODER, data)


@pytest.mark.slow
def test_pillow_alone_does_not_import_numba() -> None:
    code = (
        "import sys, sslengine.data.loading.lean_torchvision;"  # half the time
        "from sslengine.data.augment.backend import build_backend; build_backend('pil');"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
