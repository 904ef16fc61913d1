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


TENSOR, WHERE = {"name": "ToTensor"}, "config.DATA.TRAIN.TRANSFORMS"


@pytest.mark.parametrize(
    ("entries", "before", "after"),
    [
        ([{"name": "RandomHorizontalFlip"}], 4, 4),
        ([{"name": "Grayscale"}], 3, 1),
        ([{"name": "Grayscale", "num_output_channels": 3}, {"name": "ColorJitter"}], 1, 3),
        ([{"name": "MNISTImgPil2RGB"}], 1, 3),
        ([{"name": "RandomCrop", "size": 99}], 3, None),
    ],
)
def test_channels(entries: list[dict[str, Any]], before: int, after: int | None) -> None:
    image = Image.new({1: "L", 3: "RGB", 4: "RGBA"}[before], (32, 32))
    assert count_channels([*entries, TENSOR], image, None, WHERE) == after


@pytest.mark.parametrize("bands", [4, 5])
@pytest.mark.parametrize(
    "entries",
    [
        [TENSOR, {"name": "Normalize", "mean": [0, 0], "std": [1]}],
        [TENSOR, {"name": "Normalize", "mean": [0], "std": [1] * 3}],
        [{"name": "ImgPilColorDistortion", "strength": 1.0}, TENSOR],
        [{"name": "Grayscale"}, TENSOR],
    ],
)
def test_what_does_not_go_with_so_many_channels(
    entries: list[dict[str, Any]], bands: int, tmp_path: Path
) -> None:
    if bands == 4:
        Image.new("RGBA", (32, 32)).save(tmp_path / "0.png")
    else:
        arrays(tmp_path, (32, 32, bands))
    made = options(tmp_path, TRANSFORMS=entries, **BANDS)
    with pytest.raises(ConfigError, match="TRANSFORMS"):
        output_channels(made, "TRAIN", probe(made, "TRAIN"))
