"""What is seen through transparent pixels: in float64 c * a + colour * (1 - a), and Pillow's own."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from sslengine.data.decode.decoding import Decoder
from sslengine.data.options import SplitOptions, split_options
from sslengine.data.sources.base import build_sources
from tests.data.decode.test_decoding import encode
from tests.data.deep_files import numbers, png, tiff

SIDE = 16
COLOURS = {"white": (255, 255, 255), "black": (0, 0, 0), "#2060a0": (32, 96, 160)}


def decoded(encoded: bytes, **keys: Any) -> np.ndarray:
    return np.asarray(Decoder.build(SplitOptions(**keys), "TRAIN")(encoded)).astype(float)


def put_on(values: np.ndarray, colour: Any, greatest: float = 255) -> np.ndarray:
    """The formula. values: the last band is alpha."""
    opacity = values[..., -1:].astype(np.float64) / greatest
    return 255 / greatest * values[..., :-1] * opacity + np.array(colour) * (1 - opacity)


def with_alpha(mode: str) -> Image.Image:
    """Invisible, seen and half seen pixels, all with colours of noise."""
    values = numbers((SIDE, SIDE, len(mode)), np.uint8)
    values[: SIDE // 4, :, -1], values[-SIDE // 4 :, :, -1] = 0, 255
    return Image.fromarray(values, mode)


LOSSLESS: dict[str, dict[str, Any]] = {
    "PNG": {}, "TIFF": {}, "WEBP": {"lossless": True, "exact": True},
    "JPEG2000": {"irreversible": False},
}  # fmt: skip


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("mode", "kind"), [*(("RGBA", each) for each in LOSSLESS), ("LA", "PNG"), ("LA", "TIFF")]
)
def test_images_with_alpha(mode: str, kind: str, colour: str) -> None:
    if kind == "JPEG2000" and not features.check("jpg_2000"):
        pytest.skip("this Pillow has no JPEG 2000")
    image, on = with_alpha(mode), COLOURS[colour]
    encoded = encode(image, kind, **LOSSLESS[kind])
    made = decoded(encoded, TRANSPARENT=colour)
    assert np.abs(made - put_on(np.asarray(image), on)).max() <= 0.5 + 1e-9
    whole = Image.alpha_composite(Image.new("RGBA", image.size, on), image.convert("RGBA"))
    assert np.abs(made - np.asarray(whole.convert("RGB"))).max() <= 1
    grey = decoded(encoded, TRANSPARENT=list(on), IMAGE_MODE="L")
    expected = Image.fromarray(made.astype(np.uint8)).convert("L")
    np.testing.assert_array_equal(grey, np.asarray(expected))
    np.testing.assert_array_equal(decoded(encoded, IMAGE_MODE="stored"), np.asarray(image))


def test_palettes_and_colours_that_stand_for_nothing() -> None:
    colours = with_alpha("RGBA").convert("RGB")
    few = colours.quantize(8)
    numbers_of = np.asarray(few)
    for kind, key in (("PNG", 3), ("PNG", bytes(range(0, 256, 32))), ("GIF", 3)):
        encoded = encode(few, kind, transparency=key)
        shown = np.asarray(few.convert("RGB"))
        seen = (numbers_of != 3) * 255 if isinstance(key, int) else np.array([*key])[numbers_of]
        expected = put_on(np.dstack([shown, seen]), (0, 0, 0))
        assert np.abs(decoded(encoded, TRANSPARENT="black") - expected).max() <= 0.5 + 1e-9
    for image in (colours, colours.convert("L")):
        key = image.getpixel((5, 5))
        made = decoded(encode(image, transparency=key), TRANSPARENT=[9, 99, 199])
        expected = np.asarray(image.convert("RGB")).copy()
        expected[(np.atleast_3d(np.asarray(image)) == key).all(-1)] = (9, 99, 199)
        np.testing.assert_array_equal(made, expected)


def test_a_grey_level_of_four_bits_that_stands_for_nothing() -> None:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header, row = struct.pack(">IIBBBBB", 4, 1, 4, 0, 0, 0, 0), zlib.compress(b"\0\x01\x23")
    chunks = ((b"IHDR", header), (b"tRNS", b"\0\2"), (b"IDAT", row), (b"IEND", b""))
    encoded = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)
    assert decoded(encoded)[0, :, 0].tolist() == [0, 17, 255, 51]


@pytest.mark.parametrize(("kind", "bands"), [(4, 2), (6, 4)])
def test_png_of_16_bits(kind: int, bands: int) -> None:
    values = numbers((SIDE, SIDE, bands), np.uint16)
    values[:4, :, -1], values[-4:, :, -1] = 0, 65535
    for colour, on in COLOURS.items():
        made = decoded(png(values, kind), PIXEL_RANGE="type", TRANSPARENT=colour)
        assert np.abs(made - put_on(values, on, 65535)).max() <= 1


def test_a_colour_of_16_bits_that_stands_for_nothing() -> None:
    for bands, kind in ((1, 0), (3, 2)):
        values = numbers((SIDE, SIDE, bands), np.uint16)
        key = values[5, 5].astype(">u2").tobytes()
        data = struct.pack(">I", len(key)) + b"tRNS" + key
        data += struct.pack(">I", zlib.crc32(b"tRNS" + key))
        encoded = png(values, kind)
        made = decoded(encoded[:33] + data + encoded[33:], PIXEL_RANGE="type")
        invisible = (values == values[5, 5]).all(-1)
        expected = np.where(invisible[..., None], 255, np.rint(values / 257.0))
        np.testing.assert_array_equal(made, np.broadcast_to(expected, made.shape))


def test_what_is_invisible_does_not_decide_what_is_black_and_white() -> None:
    values = np.full((4, 4, 2), 65535, np.uint16)
    values[..., 0] = np.arange(16).reshape(4, 4) + 1000
    values[0, 0] = (60_000, 0)
    made = decoded(png(values, 4), PIXEL_RANGE="image")
    assert made[0, 0, 0] == 255
    assert (made[0, 1, 0], made[3, 3, 0]) == (0, 255)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("bands", [2, 4])
@pytest.mark.parametrize("extra", ["assocalpha", "unassalpha", "unspecified"])
def test_tiff(extra: str, bands: int, dtype: type) -> None:
    """Only a band that the file declares as alpha is that."""
    greatest = np.iinfo(dtype).max
    values = numbers((SIDE, SIDE, bands), dtype)
    expected = put_on(values, COLOURS["#2060a0"], greatest)
    if extra == "assocalpha":
        opacity = values[..., -1:] / greatest
        values[..., :-1] = np.rint(values[..., :-1] * opacity)
        expected = 255 / greatest * values[..., :-1] + (1 - opacity) * COLOURS["#2060a0"]
    kind = "rgb" if bands == 4 else "minisblack"
    encoded = tiff(values, photometric=kind, planarconfig="contig", extrasamples=[extra])
    keys: dict[str, Any] = {"TRANSPARENT": "#2060a0", "PIXEL_RANGE": "type"}
    if extra != "unspecified":
        # Of 8 bits Pillow divides by alpha, and rounds down, before all is rounded.
        rounded_twice = extra == "assocalpha" and dtype is np.uint8
        most = 1.5 if rounded_twice else 1
        assert np.abs(decoded(encoded, **keys) - expected).max() <= most
    elif dtype is np.uint8:
        shown = np.broadcast_to(values[..., :-1], (SIDE, SIDE, 3))
        np.testing.assert_array_equal(decoded(encoded, **keys), shown)


def test_a_fourth_band_of_jpeg_2000_that_is_not_declared() -> None:
    if not features.check("jpg_2000"):
        pytest.skip("this Pillow has no JPEG 2000")
    image = with_alpha("RGBA")
    encoded = encode(image, "JPEG2000", irreversible=False)
    infrared = encoded.replace(b"cdef", b"free")
    np.testing.assert_array_equal(decoded(infrared), np.asarray(image)[..., :3])
    assert (decoded(encoded)[0] == 255).all()


def test_images_from_python_and_turned_ones() -> None:
    image, decoder = with_alpha("RGBA"), Decoder.build(SplitOptions(EXIF_ROTATION=True), "TRAIN")
    expected = decoded(encode(image))
    given = [image, image.convert("RGBa"), image.quantize(256)]
    for each in given:
        assert (np.asarray(decoder.given(each))[0] == 255).all()
    np.testing.assert_array_equal(np.asarray(decoder.given(image)), expected)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = np.asarray(decoder(encode(image, exif=exif)))
    np.testing.assert_array_equal(turned, np.rot90(expected, -1))


def test_every_source_of_encoded_images(tmp_path: Path) -> None:
    with_alpha("RGBA").save(tmp_path / "0.png")
    (tmp_path / "images.csv").write_text("path\n0.png\n")
    for name, place in (("disk_folder", tmp_path), ("csv_filelist", tmp_path / "images.csv")):
        options = split_options(DATA_SOURCES=[name], DATA_PATHS=[str(place)], TRANSPARENT="black")
        (source,) = build_sources(options, "TRAIN")
        assert not np.asarray(source.image(0))[0].any()


@pytest.mark.parametrize("given", ["wihte", "#12", "#11223344", [0, 0], [0, 0, 256], None, 7, True])
def test_what_is_no_colour(given: Any) -> None:
    for known in ("red", "#f00", "#ff0000", [255, 0, 0], "drop", "white", "black"):
        assert not [*SplitOptions(TRANSPARENT=known).check()]
    assert [each.split(":")[0] for each in SplitOptions(TRANSPARENT=given).check()] == [
        "TRANSPARENT"
    ]
