"""The compiled back-end makes what Pillow makes, of files too, and in any number of workers."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode

from sslengine.data.augment import operations as ops
from sslengine.data.augment.backends.base import build_backend
from sslengine.data.augment.operation import Operation
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.plan import Plan
from sslengine.data.decode.decoding import Decoder
from sslengine.data.feed import DataFeed
from sslengine.data.loading.seeding import seed_sample
from sslengine.data.options import DataOptions, split_options
from tests.data.augment.lists import LISTS
from tests.data.augment.photos import photo

pytest.importorskip("numba", reason="the compiled back-end needs numba")
simplejpeg = pytest.importorskip("simplejpeg", reason="the compiled back-end needs simplejpeg")
compiled = pytest.importorskip("sslengine.data.augment.backends.compiled")

PIL, COMPILED = build_backend("pil"), build_backend("numba")
DECODER = Decoder("config.DATA.TRAIN", max_pixels=100_000, exif_rotation=False)


class Invert(Operation):
    """Of a user's own."""

    def on_pil(self, image: Image.Image) -> Any:
        return ImageOps.invert(image)


CROP = ops.Crop(5, 9, 40, 33, to=(24, 20))
SEQUENCES: list[list[Operation]] = [
    [],
    [CROP],
    [CROP, ops.FlipLeftRight(), ops.Contrast(1.4), ops.Hue(-0.1), ops.Blur(1.2), ops.Grey()],
    [ops.FlipLeftRight(), CROP, ops.FlipLeftRight(), ops.Crop(2, 3, 20, 15, to=(9, 31))],
    [ops.Hue(0.2), ops.Crop(0, 0, 24, 20, to=(24, 20))],
    [ops.Crop(0, 0, 60, 75, to=(90, 33), interpolation=InterpolationMode.BICUBIC)],
    [ops.Crop(0, 0, 60, 75, to=(50, 66), interpolation=InterpolationMode.NEAREST), CROP],
    [ops.Crop(0, 0, 60, 75, to=(30, 33), interpolation=InterpolationMode.LANCZOS)],
    [ops.CenterOnBlack((80, 50)), ops.Solarize(90)],
    [ops.Crop(-3, 40, 70, 99, to=(31, 32)), ops.FlipLeftRight(), ops.Crop(9, 0, 30, 32, to=(5, 5))],
    [CROP, Invert(), ops.Saturation(1.7), ops.Brightness(0.4)],
    [ops.Blur(40.0), ops.Blur(0.3)],
]


@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda s: "+".join(type(o).__name__ for o in s))
@pytest.mark.parametrize("as_array", [False, True])
def test_as_pillow_does(sequence: list[Operation], as_array: bool) -> None:
    image = photo(0)
    pixels = np.asarray(image).copy()
    pixels.flags.writeable = False
    source: Any = pixels if as_array else image
    expected = PIL.tensor(image, sequence)
    made = COMPILED.tensor(source, sequence)
    assert made.is_contiguous()
    assert torch.equal(made, expected)
    assert (
        np.asarray(COMPILED.image(source, sequence)) == np.asarray(expected.permute(1, 2, 0))
    ).all()
    again = COMPILED.rendered(source, sequence)
    assert torch.equal(COMPILED.tensor(again, []), expected)
    assert (np.asarray(image) == pixels).all()


THIN: list[list[Operation]] = [
    [ops.FlipLeftRight(), ops.Hue(0.2)],
    [ops.Crop(0, 0, 9, 1, to=(9, 1)), ops.Grey(), ops.FlipLeftRight(), ops.Saturation(1.3)],
    [ops.Invert(), ops.FlipLeftRight(), ops.Contrast(0.7), ops.Blur(1.0)],
    *([ops.QuarterTurns(times), ops.Equalize(), ops.Hue(0.1)] for times in (1, 2, 3)),
    [ops.QuarterTurns(1), ops.QuarterTurns(2), ops.Solarize(90), ops.Sharpness(1.4)],
]


@pytest.mark.parametrize("sequence", THIN, ids=lambda s: "+".join(type(o).__name__ for o in s))
@pytest.mark.parametrize("size", [(1, 9), (9, 1), (1, 1)], ids=["column", "row", "pixel"])
def test_images_one_pixel_wide_or_high(sequence: list[Operation], size: tuple[int, int]) -> None:
    image = photo(0).resize(size)
    if any(isinstance(op, ops.Crop) for op in sequence) and size != (1, 9):
        pytest.skip("the crop is that of the column")
    made = COMPILED.tensor(image, sequence)
    assert torch.equal(made, PIL.tensor(image, sequence))
    assert min(made.stride()) > 0


def test_what_is_drawn_into_an_image_does_not_reach_its_source() -> None:
    for source in (photo(0), np.asarray(photo(0)).copy()):
        COMPILED.image(source, []).putpixel((0, 0), (1, 2, 3))
        assert tuple(np.asarray(source)[0, 0]) == tuple(np.asarray(photo(0))[0, 0])


@pytest.mark.parametrize("name", LISTS)
def test_whole_lists(name: str) -> None:
    pipeline = Pipeline(LISTS[name], "config.DATA.TRAIN.TRANSFORMS")
    plans = [pickle.loads(pickle.dumps(Plan(pipeline, each))) for each in (PIL, COMPILED)]
    for number in range(6):
        expected, made = (_views(plan, number) for plan in plans)
        assert len(made) == len(expected)
        for one, other in zip(made, expected, strict=True):
            assert np.array_equal(np.asarray(one), np.asarray(other))


def _views(plan: Plan, number: int) -> list[Any]:
    seed_sample(0, (0, number))
    sample = {"data": [photo(number)], "data_valid": [1], "data_idx": [0], "label": [0]}
    views: list[Any] = plan(sample)["data"]
    return views


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
        assert type(made) is type(expected)
        assert np.array_equal(np.asarray(made), np.asarray(expected))


def test_colour_jpeg_does_not_pass_through_pillow() -> None:
    assert isinstance(COMPILED.decode(FILES["progressive"], DECODER), np.ndarray)
    assert isinstance(COMPILED.decode(FILES["png"], DECODER), Image.Image)


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


def test_too_many_pixels_are_refused_before_they_are_read() -> None:
    with pytest.raises(Image.DecompressionBombError, match="TRAIN.MAX_IMAGE_PIXELS=100000"):
        COMPILED.decode(encoded(Image.new("RGB", (400, 300))), DECODER)


# ---- in batches; in workers: tests/data/test_determinism.py


def test_batches_are_those_of_pillow(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(7):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(encoded(photo(number), quality=90))
    (tmp_path / "a" / "7.jpg").write_bytes(encoded(photo(7))[:300])  # unreadable
    made, expected = batches(tmp_path, "numba"), batches(tmp_path, "pil")
    for one, other in zip(made, expected, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            torch.testing.assert_close(one[key], other[key], rtol=0, atol=0)


def batches(folder: Path, backend: str) -> list[Any]:
    split = split_options(
        DATA_SOURCES=["disk_folder"],
        DATA_PATHS=[str(folder)],
        LABEL_TYPE="sample_index",
        BATCHSIZE_PER_REPLICA=2,
        TRANSFORMS=LISTS["swav"],
        COLLATE_FUNCTION="multicrop_collator",
        CACHE_INDEX=False,
    )
    options = DataOptions(
        TRAIN=split, NUM_DATALOADER_WORKERS=0, PIN_MEMORY=False, AUGMENT_BACKEND=backend
    )
    feed = DataFeed(options, "TRAIN", training=True, seed=0)
    return [batch for epoch in range(2) for batch in feed.batches(epoch)]


@pytest.mark.slow
def test_pillow_alone_does_not_import_numba() -> None:
    code = (
        "import sys, sslengine.data.loading.lean_torchvision;"  # half the time
        "from sslengine.data.augment.backends.base import build_backend; build_backend('pil');"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
