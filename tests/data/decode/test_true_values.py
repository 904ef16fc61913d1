"""Files that other programs write, with IMAGE_MODE stored: their values, all of them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sslengine.data.decode import true_values
from sslengine.data.decode.decoding import Decoder
from sslengine.data.options import SplitOptions
from sslengine.errors import ConfigError, DataError
from tests.data.decode import other_programs
from tests.data.deep_files import numbers, png, tiff
from tests.data.pictures import picture

tifffile = pytest.importorskip("tifffile", reason="writes and reads TIFFs of many bands")


def decoded(encoded: bytes, mode: str = "stored", **keys: Any) -> Any:
    return Decoder.build(SplitOptions(IMAGE_MODE=mode, **keys), "TRAIN")(encoded)


@pytest.mark.parametrize(("kind", "bands"), [(0, 1), (4, 2), (2, 3), (6, 4)])
def test_png_of_16_bits(kind: int, bands: int) -> None:
    values = numbers((5, 7, bands), np.uint16)
    encoded = png(values, kind)
    array = decoded(encoded)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, values)
    with pytest.raises(ConfigError, match=r"type uint16.*PIXEL_RANGE"):
        decoded(encoded, "RGB")
    colours = values[..., : 3 if bands > 2 else 1]
    expected = np.rint(colours.astype(np.float64) * 255 / 65535)
    in_8_bits = decoded(encoded, "RGB", PIXEL_RANGE="type", TRANSPARENT="drop")
    np.testing.assert_array_equal(np.asarray(in_8_bits), np.broadcast_to(expected, (5, 7, 3)))


TYPES = [np.uint8, np.int8, np.uint16, np.int16, np.int32, np.uint32, np.float16, np.float32]


@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("bands", [1, 2, 3, 4, 13])
@pytest.mark.parametrize("dtype", [*TYPES, np.float64], ids=lambda each: np.dtype(each).name)
def test_tiff_of_any_type_and_number_of_bands(dtype: Any, bands: int, planar: str) -> None:
    values = numbers((6, 5, bands), dtype)
    if bands == 1:
        encoded = tiff(values[..., 0])
    else:
        order = values if planar == "contig" else np.moveaxis(values, -1, 0)
        encoded = tiff(order, planarconfig=planar)
    found = decoded(encoded)
    if isinstance(found, Image.Image):
        assert (dtype, bands) == (np.uint8, 1)
    found = np.asarray(found).reshape(6, 5, bands)
    assert found.dtype == (np.uint8 if dtype is np.uint8 else np.float32)
    np.testing.assert_array_equal(found, values.astype(found.dtype))


@pytest.mark.parametrize("extra", ["unspecified", "unassalpha", "assocalpha"])
def test_rgb_and_a_fourth_band(extra: str) -> None:
    for dtype in (np.uint8, np.uint16):
        values = numbers((6, 5, 4), dtype)
        encoded = tiff(values, photometric="rgb", extrasamples=[extra])
        np.testing.assert_array_equal(np.asarray(decoded(encoded)), values)
    if extra == "unspecified":
        with pytest.raises(ConfigError, match=r"4 bands.*IMAGE_MODE to stored"):
            decoded(encoded, "RGB", PIXEL_RANGE="type")
    else:
        without = np.rint(values[..., :3] * (255 / 65535))
        made = decoded(encoded, "RGB", PIXEL_RANGE="type", TRANSPARENT="drop")
        np.testing.assert_array_equal(np.asarray(made), without)


@pytest.mark.parametrize("maximum", [4095, 65535])
@pytest.mark.parametrize("kind", [b"P5", b"P6"])
def test_ppm_of_more_than_8_bits(kind: bytes, maximum: int) -> None:
    values = numbers((5, 7, 1 if kind == b"P5" else 3), np.uint16) & maximum
    header = kind + b"\n# made by a camera\n7 5\n%d\n" % maximum
    np.testing.assert_array_equal(decoded(header + values.astype(">u2").tobytes()), values)
    with pytest.raises(OSError, match="cut off"):
        decoded(header + values.astype(">u2").tobytes()[:-1])


def test_jpeg_2000_of_more_than_8_bits() -> None:
    values = numbers((32, 32), np.uint16)
    file = BytesIO()
    Image.fromarray(values).save(file, "JPEG2000", irreversible=False)
    np.testing.assert_array_equal(decoded(file.getvalue())[..., 0], values)


def test_a_stack_is_refused_or_read_by_page() -> None:
    values = numbers((3, 6, 5), np.uint16)
    encoded = tiff(values)
    with pytest.raises(DataError, match=r"stack of 3 pages.*IMAGE_PAGE"):
        decoded(encoded)
    np.testing.assert_array_equal(decoded(encoded, IMAGE_PAGE=2)[..., 0], values[2])
    np.testing.assert_array_equal(decoded(encoded, IMAGE_PAGE="all"), np.moveaxis(values, 0, -1))
    with pytest.raises(DataError, match=r"IMAGE_PAGE is 3, and it has 3 pages"):
        decoded(encoded, IMAGE_PAGE=3)
    second = decoded(encoded, "L", IMAGE_PAGE=1, PIXEL_RANGE=[0, 65535])
    np.testing.assert_array_equal(np.asarray(second), np.rint(values[1] * (255 / 65535)))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_frames(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    file = BytesIO()
    lossless = {"lossless": True} if kind == "WEBP" else {}
    frames[0].save(file, kind, save_all=True, append_images=frames[1:], **lossless)
    with pytest.raises(DataError, match=r"stack of 3 pages"):
        decoded(file.getvalue())
    for number, frame in enumerate(frames):
        for mode in ("stored", "RGB"):
            found = decoded(file.getvalue(), mode, IMAGE_PAGE=number)
            assert found.convert("RGB").tobytes() == frame.tobytes()
    assert decoded(file.getvalue(), "RGB").tobytes() == frames[0].tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_as_pillow_turns(orientation: int) -> None:
    """The oracle is Pillow's way with the same file, of 8 bits."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    values = numbers((3, 5), np.uint8)
    found = []
    for each in (values, values.astype(np.uint16) * 257):
        file = BytesIO()
        Image.fromarray(each).save(file, "PNG", exif=exif)
        found.append(np.asarray(decoded(file.getvalue(), EXIF_ROTATION=True)))
    np.testing.assert_array_equal(found[1][..., 0], found[0].astype(np.float32) * 257)


def test_without_tifffile_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    bands = numbers((6, 5, 4), np.uint16)
    deep, many = tiff(bands[..., 0]), tiff(bands, photometric="rgb", extrasamples=["unspecified"])
    stack = tiff(bands.astype(np.uint8)[..., :3], photometric="minisblack")
    monkeypatch.setitem(sys.modules, "tifffile", None)
    file = BytesIO()
    picture(0).save(file, "TIFF")
    assert decoded(file.getvalue()).tobytes() == picture(0).tobytes()
    for encoded in (deep, many, stack, b"II*\0" + bytes(40)):
        with pytest.raises(DataError, match=r"sslengine\[tiff\]"):
            decoded(encoded)
    with pytest.raises(DataError, match=r"sslengine\[tiff\]"):
        decoded(many, "RGB", PIXEL_RANGE="type")


@pytest.mark.parametrize("name", other_programs.FILES)
def test_files_of_other_programs(name: str) -> None:
    """Without imagecodecs: those that need it are refused, with its name."""
    bands, dtype, _ = other_programs.FILES[name]
    if name in other_programs.NEED_IMAGECODECS and find_spec("imagecodecs") is None:
        missing = r"compression \w+, predictor [23] .*pip install imagecodecs \(sslengine\[tiff\]"
        with pytest.raises(DataError, match=missing):
            decoded(other_programs.encoded(name))
        return
    found = decoded(other_programs.encoded(name))
    np.testing.assert_array_equal(np.asarray(found), other_programs.values(bands, dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_white_is_zero(dtype: Any) -> None:
    """stored: as in the file; as an image, white is white."""
    values = numbers((6, 5), dtype)
    encoded = tiff(values, photometric="miniswhite")
    stored = decoded(encoded)
    np.testing.assert_array_equal(np.asarray(stored).reshape(6, 5), values)
    grey = decoded(encoded, "L", PIXEL_RANGE="type")
    most = np.iinfo(dtype).max
    np.testing.assert_array_equal(grey, 255 - np.rint(values.astype(float) * 255 / most))


@pytest.mark.parametrize(
    ("encoded", "keys"),
    [
        (png(np.zeros((64, 64, 4), np.uint16), 6), {}),
        (tiff(np.zeros((64, 64, 4), np.uint16), planarconfig="contig", compression="zlib"), {}),
        (
            tiff(
                np.zeros((64, 64, 8), np.uint8), planarconfig="contig", bigtiff=True, byteorder=">"
            ),
            {},
        ),
        (tiff(np.zeros((2, 64, 64), np.float32)), {"IMAGE_PAGE": "all"}),
        (tiff(np.zeros((9, 9, 8), np.uint8), tile=(64, 64), planarconfig="contig"), {}),
    ],
    ids=["PNG", "TIFF", "large TIFF", "pages", "tile"],
)
def test_deep_pixels_count_by_their_bytes_before_they_are_made(
    encoded: bytes, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has 8, which count as two pixels."""
    with monkeypatch.context() as patch:
        for owner, name in ((true_values, "decode_16_bits"), (tifffile.TiffPage, "asarray")):
            patch.setattr(owner, name, lambda _: pytest.fail("the pixels are made"))
        with pytest.raises(Image.DecompressionBombError, match="8 bytes.*MAX_IMAGE_PIXELS=8191 of"):
            decoded(encoded, MAX_IMAGE_PIXELS=2 * 64 * 64 - 1, **keys)
    decoded(encoded, MAX_IMAGE_PIXELS=2 * 64 * 64, **keys)


def test_a_large_page_behind_a_small_one() -> None:
    file = BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for side in (8, 64):
            writer.write(np.zeros((side, side, 3), np.uint8), photometric="rgb")
    assert decoded(file.getvalue(), "RGB", IMAGE_PAGE=1, MAX_IMAGE_PIXELS=4096).size == (64, 64)
    with pytest.raises(Image.DecompressionBombError, match="64 x 64 pixels, more"):
        decoded(file.getvalue(), "RGB", IMAGE_PAGE=1, MAX_IMAGE_PIXELS=4095)


def test_a_volume_is_refused() -> None:
    encoded = tiff(numbers((3, 6, 5), np.uint8), volumetric=True, tile=(16, 16, 16))
    with pytest.raises(DataError, match="a volume of 3 planes"):
        decoded(encoded)


def test_many_bands_and_big_files_are_read_without_a_word(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments in ({}, {"bigtiff": True, "byteorder": ">"}):
        values = numbers((6, 5, 13), np.uint8)
        found = decoded(tiff(values, planarconfig="contig", **arguments))
        np.testing.assert_array_equal(found, values)
    assert not caplog.records
    assert capfd.readouterr().err == ""


def test_whole_numbers_that_float32_does_not_hold() -> None:
    for dtype in (np.int32, np.uint32):
        with pytest.raises(ValueError, match=r"to 16777217.*16777216 alone"):
            decoded(tiff(np.array([[0, 2**24 + 1]], dtype)))
