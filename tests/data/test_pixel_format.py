from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sslengine import catalog  # noqa: F401 - declares the names that ship with sslengine
from sslengine.data.options import SplitOptions
from sslengine.data.pixel_format import PixelFormat, count_channels, output_channels, probe
from sslengine.errors import ConfigError, DataError
from tests.data.pictures import write_tree

BANDS = {"IMAGE_MODE": "stored"}


def options(root: Path, **keys: Any) -> SplitOptions:
    return SplitOptions(DATA_SOURCES=["disk_folder"], DATA_PATHS=[str(root)], **keys)


def arrays(root: Path, *shapes: tuple[int, ...]) -> None:
    for number, shape in enumerate(shapes):
        values = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)
        np.save(root / f"{number:02}.npy", values + number)


def test_the_usual(tmp_path: Path) -> None:
    write_tree(tmp_path, "0.png", "1.png")
    for mode, channels in (("RGB", 3), ("L", 1)):
        made = options(tmp_path, IMAGE_MODE=mode)
        seen = probe(made, "TRAIN")
        assert seen is not None
        assert (seen.format.channels, seen.format.dtype) == (channels, "uint8")
        assert output_channels(made, "TRAIN", seen) == channels


def test_arrays(tmp_path: Path) -> None:
    arrays(tmp_path, *[(4, 5, 6)] * 20)
    seen = probe(options(tmp_path, **BANDS), "TRAIN")
    assert seen is not None
    assert seen.format == PixelFormat(6, "float32", 0, 119 + 17)  # of the last that is looked at
    assert str(seen.format) == "6 channels of float32, 0 to 136"


def test_images_that_differ(tmp_path: Path) -> None:
    arrays(tmp_path, (4, 4, 6), (4, 4, 5))
    with pytest.raises(ConfigError, match=r"00.npy has 6 channels of .*; .*01.npy has 5 channels"):
        probe(options(tmp_path, **BANDS), "TRAIN")


def test_an_image_of_8_bits_among_others(tmp_path: Path) -> None:
    arrays(tmp_path, (4, 4, 1), (4, 4, 1))
    Image.new("L", (4, 4), 9).save(tmp_path / "02.png")
    with pytest.raises(ConfigError, match=r"differ. .*float32.*02.png.*of uint8"):
        probe(options(tmp_path, **BANDS), "TRAIN")
    with pytest.raises(ConfigError, match=r"02.png: its values are of 8 bits.* up to 4095 .*PIXEL"):
        probe(options(tmp_path, PIXEL_RANGE=[0, 4095], **BANDS), "TRAIN")


def test_unreadable_ones_are_no_matter_of_this(tmp_path: Path) -> None:
    arrays(tmp_path, (4, 4, 6), (4, 4, 6))
    (tmp_path / "00.npy").write_bytes(b"")
    seen = probe(options(tmp_path, **BANDS), "TRAIN")
    assert seen is not None
    assert seen.path.endswith("01.npy")
    (tmp_path / "01.npy").write_bytes(b"")
    made = options(tmp_path, **BANDS)
    assert probe(made, "TRAIN") is None
    with pytest.raises(DataError, match=r"INPUT_CHANNELS"):
        output_channels(made, "TRAIN", None)


def test_more_than_8_bits_are_refused_before_the_launch(tmp_path: Path) -> None:
    Image.fromarray(np.array([[100, 4002]], np.uint16)).save(tmp_path / "0.png")
    with pytest.raises(ConfigError, match=r"0.png: .*type uint16, from 100 to 4002.*PIXEL_RANGE"):
        probe(options(tmp_path), "TRAIN")
    assert probe(options(tmp_path, PIXEL_RANGE=[0, 4095]), "TRAIN") is not None


def test_what_a_transform_of_ones_own_makes_is_counted(tmp_path: Path) -> None:
    arrays(tmp_path, (4, 4, 6))
    own = {"name": f"{__name__}:FirstThree"}
    made = options(tmp_path, TRANSFORMS=[{"name": "ToTensor"}, own], **BANDS)
    assert output_channels(made, "TRAIN", probe(made, "TRAIN")) == 3


def test_one_that_needs_a_real_sample_is_left_to_the_run(tmp_path: Path) -> None:
    arrays(tmp_path, (4, 4, 6))
    own = {"name": f"{__name__}:Particular"}
    made = options(tmp_path, TRANSFORMS=[{"name": "ToTensor"}, own], **BANDS)
    assert output_channels(made, "TRAIN", probe(made, "TRAIN")) == 6
    ours = options(tmp_path, TRANSFORMS=[{"name": "ToTensor"}, {"name": "ToTensor"}], **BANDS)
    with pytest.raises(ConfigError, match="ToTensor"):
        output_channels(ours, "TRAIN", probe(ours, "TRAIN"))


class Particular:
    def __call__(self, image: Any) -> Any:
        raise KeyError("not in a table that the run fills")


class FirstThree:
    def __call__(self, image: Any) -> Any:
        return image[:3]


WHERE = "config.DATA.TRAIN.TRANSFORMS"
JITTER = {"name": "ColorJitter", "brightness": 0.8}


@pytest.mark.parametrize(
    ("entries", "before", "after"),
    [
        ([{"name": "ToTensor"}, {"name": "RandomHorizontalFlip"}], 4, 4),
        ([{"name": "MNISTImgPil2RGB"}, {"name": "ToTensor"}], 1, 3),
        ([{"name": "Grayscale"}, {"name": "ToTensor"}], 3, 1),
        ([{"name": "ToTensor"}, {"name": "OneHotEncode"}], 7, 7),
        ([JITTER, {"name": "GaussianNoise"}, {"name": "ToTensor"}], 7, 7),
        ([{"name": "Resize", "size": 9}], 7, None),
    ],
)
def test_channels(entries: list[dict[str, Any]], before: int, after: int | None) -> None:
    image: Any = np.zeros((20, 30, before), np.float32)
    if before in (1, 3):
        image = Image.new("RGB" if before == 3 else "L", (30, 20))
    assert count_channels(entries, image, None, WHERE) == after


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "Normalize", "mean": [0, 0], "std": [1]},
        {"name": "ImgPilColorDistortion", "strength": 1.0, "grayscale_probability": 1.0},
        {"name": "Grayscale"},
    ],
)
def test_what_does_not_go_with_five_channels(entry: dict[str, Any]) -> None:
    image = np.zeros((20, 30, 5), np.float32)
    entries = [{"name": "ToTensor"}] * (entry["name"] == "Normalize") + [entry]
    with pytest.raises(ConfigError, match=rf"{WHERE}.\d \({entry['name']}\)"):
        count_channels(entries, image, None, WHERE)
