from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sslengine import catalog  # noqa: F401 - declares the names that ship with sslengine
from sslengine.data.augment.refusals import count_on_arrays
from sslengine.errors import ConfigError

WHERE = "config.DATA.TRAIN.TRANSFORMS"
BANDS = np.zeros((20, 30, 4), np.float32)
CROPS = {"name": "ImgPilToMultiCrop", "total_num_crops": 2, "num_crops": [1, 1],
         "size_crops": [16, 8], "crop_scales": [[0.3, 1], [0.1, 0.5]]}  # fmt: skip
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
ASKS = r"(Saturation|Hue) asks for RGB: write ColorJitter with saturation: 0 and hue: 0"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": "ColorJitter", "hue": 0.1}, r"1 \(ColorJitter\).*Hue asks for RGB: write"),
    ({"name": "ColorJitter", "saturation": 0.1}, r"1 \(ColorJitter\).*Saturation asks for RGB"),
    ({"name": "ImgPilColorDistortion"}, ASKS),
    ({"name": "ImgPilRandomColorJitter"}, ASKS),
    ({"name": "RandomGrayscale", "p": 0.1}, r"RandomGrayscale.*Grey asks for RGB: remove it"),
    ({"name": "RandomApply", "p": 0.5, "transforms": [JITTER, {"name": "Grayscale"}]},
     r"1.transforms.1 \(Grayscale\): "),
    ({"name": "ImgPilRandomPhotometric"}, r"asks for RGB: remove it, or set IMAGE_MODE: RGB"),
    ({"name": "RandomEqualize"}, "Equalize asks"),
    ({"name": "RandAugment"}, "takes PIL images"),
    ({"name": "ImgPilResizeLargerSide"}, "write Resize"),
    ({"name": "RandomVerticalFlip", "p": 0.01}, "put it behind ToTensor"),
    ({"name": "RandomCrop", "size": 8, "padding": 2}, r"1 \(RandomCrop\).*behind ToTensor"),
    ({"name": "Resize", "size": 9, "interpolation": 1}, "asks for RGB.*bilinear, bicubic"),
    ({"name": "Resize", "size": 9, "interpolation": "box"}, "asks for RGB.*bilinear, bicubic"),
    ({"name": "Resize", "size": 9, "interpolation": "bicubicc"}, "Did you mean 'bicubic'"),
    ({"name": "ImgPilRandomSolarize", "p": 0.1}, r"Solarize .*set PIXEL_RANGE: \[low, high\]"),
]  # fmt: skip


@pytest.mark.parametrize("entries", TAKEN)
def test_taken(entries: list[dict[str, Any]]) -> None:
    behind = [{"name": "ToTensor"}, {"name": "RandomRotation", "degrees": 9}]
    assert count_on_arrays([*entries, *behind], BANDS, None, WHERE) == len(entries)


@pytest.mark.parametrize(("entry", "message"), REFUSED)
def test_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        count_on_arrays([BLUR, entry], BANDS, None, WHERE)


def test_a_value_range_makes_solarize_possible() -> None:
    entries = [{"name": "ImgPilRandomSolarize"}, {"name": "RandomInvert"}]
    assert count_on_arrays(entries, BANDS, (0, 4095), WHERE) == 2
    assert count_on_arrays(entries, BANDS.astype(np.uint8), None, WHERE) == 2


def test_behind_one_of_the_users_own_nothing_is_known() -> None:
    entries = [{"name": "tests.data.probes:DrawProbe"}, {"name": "RandomGrayscale"}]
    assert count_on_arrays(entries, BANDS, None, WHERE) == 0
