"""Odd and hostile images: each is read right, or refused with a reason."""

from __future__ import annotations

import struct
import zlib
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from sslengine.data.decode.decoding import Decoder
from sslengine.data.options import SplitOptions
from sslengine.errors import ConfigError
from tests.data.pictures import picture


def decode(encoded: bytes, **keys: Any) -> Image.Image:
    image = Decoder.build(SplitOptions(**keys), "TRAIN")(encoded)
    assert image.mode == "RGB"
    return image


def encode(image: Image.Image, kind: str = "PNG", **arguments: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **arguments)
    return file.getvalue()


def pixels(encoded: bytes, **keys: Any) -> np.ndarray:
    return np.asarray(decode(encoded, **keys))


def same(image: Image.Image, other: Image.Image) -> bool:
    return image.tobytes() == other.tobytes()


def grey(values: np.ndarray) -> np.ndarray:
    return np.repeat(values[..., None], 3, axis=2)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "GIF", "WEBP"])
def test_lossless_formats(kind: str) -> None:
    few = Image.fromarray(np.asarray(picture(0)) // 64 * 64)
    encoded = encode(few, kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert np.array_equal(pixels(encoded), np.asarray(few))


def test_grey_levels_of_8_bits_and_of_one() -> None:
    values = np.asarray(picture(0).convert("L"))
    assert np.array_equal(pixels(encode(Image.fromarray(values))), grey(values))
    jpeg = encode(Image.fromarray(np.full((16, 16), 200, np.uint8)), "JPEG")
    assert set(decode(jpeg).tobytes()) == {200}
    black_and_white = np.eye(8, dtype=bool)
    assert np.array_equal(
        pixels(encode(Image.fromarray(black_and_white))),
        grey(black_and_white.astype(np.uint8) * 255),
    )


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_grey_levels_of_16_bits_are_scaled_if_asked(kind: str) -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    expected = np.rint(values.astype(np.float64) * 255 / 65535).astype(np.uint8)
    if kind == "PPM":  # older Pillows read it and do not write it
        encoded = b"P5 256 256 65535\n" + values.astype(">u2").tobytes()
    else:
        encoded = encode(Image.fromarray(values), kind)
    assert np.array_equal(pixels(encoded, PIXEL_RANGE="type"), grey(expected))
    with pytest.raises(ConfigError, match=r"type uint16, from 0 to 65535, and IMAGE_MODE RGB has"):
        decode(encoded)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_numbers_of_which_nobody_says_which_are_white(dtype: type) -> None:
    values = np.arange(64, dtype=dtype).reshape(8, 8) * 4
    encoded = encode(Image.fromarray(values), "TIFF")
    with pytest.raises(ConfigError, match=r"from 0 to 252.*config.DATA.TRAIN.PIXEL_RANGE: \[low"):
        decode(encoded)
    as_they_are = pixels(encoded, PIXEL_RANGE=[0, 255])
    assert np.array_equal(as_they_are, grey(values.astype(np.uint8)))


def test_cmyk() -> None:
    ink = np.random.default_rng(0).integers(0, 256, (8, 8, 4), dtype=np.uint8)
    light = 255 - ink.astype(np.float64)
    expected = light[..., :3] * light[..., 3:] / 255
    assert np.abs(pixels(encode(_cmyk(ink), "TIFF")) - expected).max() <= 1
    # As Photoshop writes it, inverted.
    assert np.abs(pixels(encode(_cmyk(ink * 0 + 64), "JPEG", quality=100)) - 143.25).max() <= 3


def _cmyk(ink: np.ndarray) -> Image.Image:
    return Image.merge("CMYK", [Image.fromarray(ink[..., band]) for band in range(4)])


def test_transparency_is_dropped_if_asked() -> None:
    colours, alpha = picture(0), Image.fromarray(np.eye(8, dtype=np.uint8) * 255)
    light, dropped = colours.convert("L"), {"TRANSPARENT": "drop"}
    assert same(decode(encode(Image.merge("RGBA", [*colours.split(), alpha])), **dropped), colours)
    with_alpha = encode(Image.merge("LA", [light, alpha]))
    assert np.array_equal(pixels(with_alpha, **dropped), grey(np.asarray(light)))
    palette = colours.quantize(8)
    for transparency in (3, bytes(range(8))):
        encoded = encode(palette, transparency=transparency)
        assert "transparency" in Image.open(BytesIO(encoded)).info
        assert same(decode(encoded, **dropped), palette.convert("RGB"))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP"])
def test_an_animation_is_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    more = {"lossless": True} if kind == "WEBP" else {}
    encoded = encode(frames[0], kind, save_all=True, append_images=frames[1:], **more)
    assert getattr(Image.open(BytesIO(encoded)), "n_frames", 1) == 3
    assert same(decode(encoded), frames[0])


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_turns_an_image_if_asked(kind: str) -> None:
    values = np.zeros((16, 32, 3), np.uint8)
    values[:, 16:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    encoded = encode(Image.fromarray(values), kind, exif=exif)
    assert np.array_equal(pixels(encoded) > 127, values > 127)
    turned = pixels(encoded, EXIF_ROTATION=True)
    assert np.array_equal(turned > 127, np.rot90(values, -1) > 127)
    plain = encode(Image.fromarray(values), kind)
    assert np.array_equal(pixels(plain, EXIF_ROTATION=True) > 127, values > 127)


def test_nothing_and_something_else() -> None:
    with pytest.raises(UnidentifiedImageError, match=r"^the file is empty$"):
        decode(b"")
    with pytest.raises(
        UnidentifiedImageError,
        match=r"identify an image in 15 bytes that begin with b'<html>not an'",
    ):
        decode(b"<html>not an im")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize("mode", ["RGB", "L", "stored"])
def test_postscript_starts_no_program(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow takes a file for what its bytes say, and hands EPS on to Ghostscript."""
    Image.init()
    assert Image.open(BytesIO(EPS)).format == "EPS"  # this is one

    def start(*arguments: Any, **_: Any) -> None:
        pytest.fail(f"starts {arguments}")

    for name in ("Popen", "run", "call", "check_call", "check_output"):
        monkeypatch.setattr(f"subprocess.{name}", start)
    with pytest.raises(UnidentifiedImageError, match=r"begin with b'%!PS-Adobe-3"):
        Decoder.build(SplitOptions(IMAGE_MODE=mode), "TRAIN")(EPS)


def bomb(width: int, height: int, bits: int = 8, kind: int = 2) -> bytes:
    """A PNG that says it has so many pixels, in hundred bytes. kind: 2 for RGB, 6 for RGBA."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_gigapixel_image_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(
        Image.DecompressionBombError,
        match=r"has 50000 x 40000 pixels, more than config.DATA.TRAIN.MAX_IMAGE_PIXELS=134217728",
    ):
        decode(bomb(50_000, 40_000))
    with pytest.raises(Image.DecompressionBombError, match=r"10000 x 7000 pixels of 8 bytes, more"):
        decode(bomb(10_000, 7_000, bits=16, kind=6))
    with pytest.raises(Image.DecompressionBombError, match=r"8 x 8 pixels.*MAX_IMAGE_PIXELS=63"):
        decode(encode(picture(0)), MAX_IMAGE_PIXELS=63)
    assert same(decode(encode(picture(0)), MAX_IMAGE_PIXELS=64), picture(0))


def test_the_key_holds_in_place_of_pillows_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below it Pillow warns, which is an error here, or refuses."""
    for limit in (40, 20):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert same(decode(encode(picture(0))), picture(0))
        assert limit == Image.MAX_IMAGE_PIXELS


def npy(values: np.ndarray) -> bytes:
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


def stored(encoded: bytes, **keys: Any) -> Any:
    return Decoder.build(SplitOptions(IMAGE_MODE="stored", **keys), "TRAIN")(encoded)


@pytest.mark.parametrize("mode", ["RGBA", "L", "1"])
def test_an_image_of_8_bits_is_not_taken_for_one_of_more(mode: str) -> None:
    """ToTensor divides it by 255, and others not."""
    image = picture(0).convert(mode)
    for given in (partial(stored, encode(image)), partial(stored, npy(np.uint8([[[3]]])))):
        given(PIXEL_RANGE=[0, 255])
        with pytest.raises(ConfigError, match=r"8 bits.* up to 4095 \(config.DATA.TRAIN.PIXEL_R"):
            given(PIXEL_RANGE=[0, 4095])
    stored(npy(np.uint16([[[3]]])), PIXEL_RANGE=[0, 4095])


def test_a_palette_as_the_colours_that_it_stands_for() -> None:
    palette = picture(0).quantize(8)
    assert same(stored(encode(palette)), palette.convert("RGB"))
    assert stored(encode(palette, transparency=3)).mode == "RGBA"


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float64, bool])
@pytest.mark.parametrize("shape", [(6, 5, 7), (6, 5)])
def test_arrays_with_any_number_of_channels(dtype: type, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 2 if dtype is bool else 200, shape).astype(dtype)
    array = stored(npy(values))
    assert array.dtype == (np.uint8 if dtype is np.uint8 else np.float32)
    np.testing.assert_array_equal(array, values.reshape(6, 5, -1))


def test_arrays_that_are_no_image_or_not_asked_for() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 2, 2, 2\) and type float64 is no image"):
        stored(npy(np.zeros((2, 2, 2, 2))))
    with pytest.raises(ValueError, match=r"type complex128 is no image"):
        stored(npy(np.zeros((2, 2), complex)))
    with pytest.raises(Image.DecompressionBombError, match=r"has 5 x 6 pixels"):
        stored(npy(np.zeros((6, 5, 2))), MAX_IMAGE_PIXELS=29)
    with pytest.raises(ConfigError, match=r"set config.DATA.TRAIN.IMAGE_MODE to stored"):
        decode(npy(np.zeros((2, 2))))
    objects = BytesIO()
    np.save(objects, np.array([None]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        stored(objects.getvalue())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "BMP"])
def test_cut_off_at_any_place(kind: str) -> None:
    whole = encode(picture(0, side=48), kind)
    for kept in (0.1, 0.5, 0.9):
        with pytest.raises((OSError, SyntaxError, ValueError)):
            decode(whole[: int(len(whole) * kept)])
