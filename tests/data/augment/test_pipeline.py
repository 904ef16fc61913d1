from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from sslengine import catalog  # noqa: F401 - declares the names that ship with sslengine
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.transform import (
    MakesLabel,
    MakesViews,
    Sample,
    TakesAll,
    probability,
)
from sslengine.data.seeding import seed_sample
from sslengine.errors import ConfigError, DataError, UnknownNameError
from tests.data.pictures import picture

HERE = "tests.data.augment.test_pipeline"


class Add:
    def __init__(self, amount: int = 1) -> None:
        self.amount = amount

    def __call__(self, value: int) -> int:
        return value + self.amount


class Twice(MakesViews):
    def __call__(self, value: int) -> list[int]:
        return [value, value + 1000]


class Reverse(TakesAll):
    def __call__(self, values: list[int]) -> tuple[int, ...]:
        return tuple(reversed(values))


class Parity(MakesLabel):
    def __call__(self, value: int) -> tuple[int, str]:
        return value, "odd" if value % 2 else "even"


class Mask:
    def __call__(self, value: int) -> dict[str, int]:
        return {"data": value, "mask": -value}


def sample() -> Sample:
    return {"data": [10, 20], "data_valid": [1, -1], "data_idx": [3, 3], "label": ["a", "b"]}


def run(*entries: dict[str, Any]) -> Sample:
    named = [{**entry, "name": f"{HERE}:{entry['name']}"} for entry in entries]
    return Pipeline(named, "config.DATA.TRAIN.TRANSFORMS")(sample())


def test_every_image_in_turn() -> None:
    assert run({"name": "Add"}, {"name": "Add", "amount": 5}) == {**sample(), "data": [16, 26]}


def test_indices() -> None:
    assert run({"name": "Add", "indices": [1]})["data"] == [10, 21]
    assert run({"name": "Add", "indices": []})["data"] == [11, 21]


def test_views_take_the_place_of_their_image() -> None:
    assert run({"name": "Twice"}) == {
        "data": [10, 1010, 20, 1020],
        "data_valid": [1, 1, -1, -1],
        "data_idx": [3, 3, 3, 3],
        "label": ["a", "a", "b", "b"],
    }
    partly = run({"name": "Twice", "indices": [1]})
    assert partly["data"] == [10, 20, 1020]
    assert partly["label"] == ["a", "b", "b"]


def test_transforms_that_take_all_or_make_labels_or_keys() -> None:
    assert run({"name": "Reverse"})["data"] == [20, 10]
    assert run({"name": "Add", "indices": [1]}, {"name": "Parity"})["label"] == ["even", "odd"]
    masked = run({"name": "Twice"}, {"name": "Mask", "indices": [0, 2]})
    assert masked["data"] == [10, 1010, 20, 1020]
    assert masked["mask"] == [-10, -20]


def _resized(image: Any, interpolation: Any, size: int = 9) -> np.ndarray:
    entry = {"name": "Resize", "size": [size, size], "interpolation": interpolation}
    made = {**sample(), "data": [image, image]}
    return np.asarray(Pipeline([entry], "config.DATA.TRAIN.TRANSFORMS")(made)["data"][0])


@pytest.mark.parametrize(
    ("given", "filter"),
    [("bicubic", Image.Resampling.BICUBIC), ("Bilinear", Image.Resampling.BILINEAR),
     ("lanczos", Image.Resampling.LANCZOS), (4, Image.Resampling.BOX)],
)  # fmt: skip
def test_interpolation_by_name_or_number_is_pillows_filter(given: Any, filter: Any) -> None:
    image = picture(3)
    expected = np.asarray(image.resize((9, 9), filter))
    assert (_resized(image, given) == expected).all()


@pytest.mark.parametrize("name", ["Resize", "RandomResizedCrop"])
@pytest.mark.parametrize("given", ["bicubicc", 77, True])
def test_an_interpolation_that_is_none_fails_when_it_is_built(name: str, given: Any) -> None:
    entry = {"name": name, "size": 9, "interpolation": given}
    with pytest.raises(ConfigError, match=r"TRANSFORMS.0.interpolation: expected bicubic, bilin"):
        Pipeline([entry], "config.DATA.TRAIN.TRANSFORMS")


def test_torchvision_by_name_with_arguments_as_yaml_has_them() -> None:
    entries = [
        {"name": "RandomResizedCrop", "size": 16, "scale": [0.5, 1.0], "interpolation": 3},
        {"name": "RandomHorizontalFlip", "p": 0.5},
        {"name": "RandomApply", "p": 0.5, "transforms": [{"name": "ColorJitter", "hue": 0.1}]},
        {"name": "ToTensor"},
        {"name": "RandomErasing", "scale": [0.02, 0.3], "p": 1.0},
        {"name": "Normalize", "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2]},
    ]
    bicubic = transforms.InterpolationMode.BICUBIC
    oracle = transforms.Compose(
        [
            transforms.RandomResizedCrop(16, (0.5, 1.0), interpolation=bicubic),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(hue=0.1)]),
            transforms.ToTensor(),
            transforms.RandomErasing(1.0, (0.02, 0.3)),
            transforms.Normalize((0.4, 0.5, 0.6), (0.2, 0.2, 0.2)),
        ]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline = Pipeline(entries, "here")
        for number in range(10):
            image = picture(number, side=32)
            torch.manual_seed(number)
            expected = oracle(image)
            torch.manual_seed(number)
            got = pipeline({"data": [image], "data_valid": [1], "data_idx": [0], "label": [0]})
            torch.testing.assert_close(got["data"][0], expected, rtol=0, atol=0)


def test_bad_arguments_are_told_with_their_place() -> None:
    where = "config.DATA.TEST.TRANSFORMS"
    with pytest.raises(ConfigError, match=r"TRANSFORMS.0 \(ColorJitter\): .*hue"):
        Pipeline([{"name": "ColorJitter", "hue": 0.7}], where)
    with pytest.raises(
        ConfigError, match=r"TRANSFORMS.0.indices: expected a list of numbers, got 0"
    ):
        Pipeline([{"name": "ToTensor", "indices": 0}], where)
    with pytest.raises(UnknownNameError, match=r"TRANSFORMS.0.transforms.0: .*'ColorJittr'"):
        Pipeline([{"name": "RandomApply", "transforms": [{"name": "ColorJittr"}]}], where)


def test_a_failure_names_the_transform_and_the_sample() -> None:
    pipeline = Pipeline([{"name": "ToTensor"}], "here")
    broken = {**sample(), "data": [np.zeros((1, 1, 2, 2)), 0]}
    with pytest.raises(DataError, match=r"here.0 \(ToTensor\) failed on sample 3: ValueError: pic"):
        pipeline(broken)


class Forgets:
    def __call__(self, value: int) -> None:
        """Returns nothing."""


def test_a_transform_that_returns_nothing_is_named_and_not_the_next() -> None:
    entries = [{"name": f"{HERE}:Forgets"}, {"name": f"{HERE}:Add"}]
    with pytest.raises(DataError, match=r"here.0 \(.*Forgets\) returned None for sample 3"):
        Pipeline(entries, "here")({"data": [1], "data_idx": [3]})


def test_a_probability_is_one() -> None:
    assert [probability(p) for p in (0.0, 0.3, 1.0)] == [0.0, 0.3, 1.0]
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=f"between 0 and 1; got {wrong}"):
            probability(wrong)


CROPS = {"name": "ImgPilToMultiCrop", "total_num_crops": 2, "num_crops": [1, 1],
         "size_crops": [16, 8], "crop_scales": [[0.3, 1], [0.1, 0.5]]}  # fmt: skip
IMPOSSIBLE: list[tuple[str, dict[str, Any], str]] = [
    ("ImgPilToPatchesAndImage", {"num_patches": 8}, "num_patches"),
    ("ImgPilToPatchesAndImage", {"crop_size_patches": 63}, "expected 66 or more"),
    ("ImgPilToMultiCrop", {**CROPS, "total_num_crops": 4}, "total_num_crops"),
    ("ImgPilToMultiCrop", {**CROPS, "size_crops": [16]}, "shorter"),
    ("ImgPilToMultiCrop", {**CROPS, "crop_scales": [[0.1, 1], [0.2, 0.1]]}, "crop_scales"),
    ("ImgPilToMultiCrop", {**CROPS, "crop_scales": [[8, 100], [0.2, 1]]}, "crop_scales"),
    ("ImgPatchesFromTensor", {"num_patches": 8}, "num_patches"),
    ("ShuffleImgPatches", {}, "perm_file"),
    ("ShuffleImgPatches", {"perm_file": "p.npy", "num_perms": 3}, "perm_file"),
    ("ShuffleImgPatches", {"perm_file": "https://example.com/p.npy"}, "not downloaded"),
    ("ShuffleImgPatches", {"num_perms": 25, "num_patches": 4}, "num_perms"),
    ("MaskedImageModeling", {"pred_ratio_mean": [0.1, 0.2]}, "shorter"),
    ("MaskedImageModeling", {"pred_ratio_mean": [0.8], "pred_ratio_var": [0.4]}, "pred_ratio_var"),
    ("RandomPatchMask", {"cell_size": 24}, "cell_size"),
    ("RandomPatchMask", {"ratio": 60}, "ratio"),
    ("RandAugment", {"weight_choice": 0}, "weight_choice"),
    ("ImgPilGaussianBlur", {"p": 1.5}, "probability"),
    ("ImgPilRandomSolarize", {"threshold": 300}, "threshold"),
    ("ImgRotatePil", {"num_rotations_per_img": 2}, "num_rotations_per_img"),
    ("Corrupt", {"kind": "rain"}, "kind"),
    ("Corrupt", {"kind": "fog", "severity": 0}, "severity"),
]


@pytest.mark.parametrize(("name", "arguments", "key"), IMPOSSIBLE)
def test_impossible_arguments(name: str, arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"here.0 \({name}\): .*{key}"):
        Pipeline([{**arguments, "name": name}], "here")


# ---- arrays of any channels

WHERE = "config.DATA.TRAIN.TRANSFORMS"
BANDS = np.zeros((20, 30, 4), np.float32)
JITTER = {"name": "ColorJitter", "brightness": 0.8, "contrast": 0.8}
BLUR = {"name": "ImgPilGaussianBlur"}
TAKEN: list[list[dict[str, Any]]] = [
    [{"name": "ImgReplicatePil"}, {"name": "RandomResizedCrop", "size": 8},
     {"name": "RandomHorizontalFlip"}, JITTER, BLUR, {"name": "GaussianNoise"},
     {"name": "ChannelDrop"}],
    [CROPS, {"name": "ImgPilMultiCropRandomApply", "prob": [1, 0.5], "transforms": [BLUR]}],
    [{"name": "ImgRotatePil", "num_angles": 8}, {"name": "Resize", "size": 9},
     {"name": "CenterCrop", "size": 8}, {"name": "RandomApply", "transforms": [JITTER]}],
    [{"name": "Resize", "size": 9, "interpolation": "bicubic"},
     {"name": "RandomResizedCrop", "size": 8, "interpolation": "nearest"}],
    [{"name": "OneHotEncode", "num_classes": 4}, {"name": "ImgPilToPatchesAndImage"}],
]  # fmt: skip
REFUSED: list[dict[str, Any]] = [
    {"name": "ColorJitter", "hue": 0.1}, {"name": "ColorJitter", "saturation": 0.1},
    {"name": "ImgPilColorDistortion"}, {"name": "ImgPilRandomColorJitter"},
    {"name": "RandomGrayscale", "p": 0.1}, {"name": "ImgPilRandomPhotometric"},
    {"name": "RandomApply", "p": 0.5, "transforms": [JITTER, {"name": "Grayscale"}]},
    {"name": "RandomEqualize"}, {"name": "RandAugment"}, {"name": "ImgPilResizeLargerSide"},
    {"name": "RandomVerticalFlip", "p": 0.1}, {"name": "RandomCrop", "size": 8, "padding": 2},
    {"name": "Resize", "size": 9, "interpolation": 1},
    {"name": "Resize", "size": 9, "interpolation": "box"},
    {"name": "ImgPilRandomSolarize", "p": 0.1},
]  # fmt: skip


def pass_bands(entries: list[dict[str, Any]], limits: tuple[float, float] | None = None) -> None:
    pipeline = Pipeline(entries, WHERE, limits=limits)
    for number in range(64):
        seed_sample(0, (0, number))
        pipeline({"data": [BANDS], "data_valid": [1], "data_idx": [0], "label": [0]})


@pytest.mark.parametrize("entries", TAKEN)
def test_taken(entries: list[dict[str, Any]]) -> None:
    pass_bands(entries)


@pytest.mark.parametrize("entry", REFUSED)
def test_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=rf"{WHERE}.1 \({entry['name']}\)[\s\S]*IMAGE_MODE: stored"):
        pass_bands([BLUR, entry])


def test_a_value_range_makes_solarize_possible() -> None:
    pass_bands([{"name": "ImgPilRandomSolarize"}, {"name": "RandomInvert"}], (0, 4095))
