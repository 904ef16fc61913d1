from __future__ import annotations

from typing import Any

import pytest

from sslengine import catalog  # noqa: F401 - declares the names that ship with sslengine
from sslengine.data.decode.channels import channels_after
from sslengine.errors import ConfigError

WHERE = "config.DATA.TRAIN.TRANSFORMS"


@pytest.mark.parametrize(
    ("entries", "before", "after"),
    [
        ([], 4, 4),
        ([{"name": "ToTensor"}, {"name": "RandomHorizontalFlip"}], 4, 4),
        ([{"name": "Grayscale"}], 3, 1),
        ([{"name": "Grayscale", "num_output_channels": 3}, {"name": "ColorJitter"}], 1, 3),
        ([{"name": "MNISTImgPil2RGB"}], 1, 3),
        ([{"name": "Grayscale", "indices": [0]}], 3, 3),
        ([{"name": "Normalize", "mean": [0.5], "std": [0.5]}], 7, 7),
        ([{"name": "RandomApply", "transforms": [{"name": "Grayscale"}]}], 3, 1),
        ([{"name": "tests.data.probes:DrawProbe"}, {"name": "ColorJitter"}], 7, None),
    ],
)
def test_channels(entries: list[dict[str, Any]], before: int, after: int | None) -> None:
    assert channels_after(entries, before, WHERE) == after


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "Normalize", "mean": [0, 0], "std": [1]}, r"TRANSFORMS.1.mean .*2 numbers"),
        ({"name": "Normalize", "mean": [0] * 5, "std": [1] * 3}, r"TRANSFORMS.1.std .*3 numbers"),
        ({"name": "ImgPilColorDistortion", "strength": 1.0}, r"TRANSFORMS.1 .*they have 5"),
        ({"name": "Grayscale"}, r"TRANSFORMS.1 \(Grayscale\)"),
    ],
)
def test_what_does_not_go_with_five_channels(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        channels_after([{"name": "ToTensor"}, entry], 5, WHERE)
