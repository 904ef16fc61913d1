"""The view of an image, and the index of the training images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from sslengine import catalog  # noqa: F401 - declares the transforms
from sslengine.data.judged_view import choose
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.predictor import predictor as module
from sslengine.predictor.predictor import FeatureIndex
from sslengine.trained import View

TO_TENSOR = {"name": "ToTensor"}


def _data(train: list[Any], test: list[Any] | None = None) -> DataOptions:
    return DataOptions(
        TRAIN=SplitOptions(TRANSFORMS=train), TEST=SplitOptions(TRANSFORMS=test or [])
    )


def test_those_of_the_test_set_come_first() -> None:
    entries = [{"name": "CenterCrop", "size": 4}, TO_TENSOR]
    assert choose(_data([TO_TENSOR], entries)) == (entries, "from config.DATA.TEST")


@pytest.mark.parametrize(
    ("train", "size"),
    [
        ([{"name": "RandomResizedCrop", "size": 112}], 112),
        ([{"name": "Resize", "size": [96, 128]}], 128),
        ([{"name": "ImgPilToMultiCrop", "total_num_crops": 8, "size_crops": [160, 96]}], 160),
        ([{"name": "RandomApply", "p": 0.5,
           "transforms": [{"name": "RandomCrop", "size": 64}]}], 64),
    ],
)  # fmt: skip
def test_the_size_of_training_with_its_margin(train: list[Any], size: int) -> None:
    entries, said = choose(_data([{"name": "ColorJitter", "brightness": 1}, *train, TO_TENSOR]))
    assert entries == [
        {"name": "Resize", "size": round(size * 256 / 224)}, {"name": "CenterCrop", "size": size},
        TO_TENSOR,
    ]  # fmt: skip
    assert said.startswith("config.DATA.TEST has none: resized to ")
    assert said.endswith("not normalised")


def test_trained_on_images_as_they_are() -> None:
    """At 224 pixels the features would be those of another scale."""
    entries, said = choose(_data([{"name": "RandomHorizontalFlip"}, TO_TENSOR]))
    assert entries == [TO_TENSOR]
    assert "unchanged, for config.DATA.TRAIN names no size" in said


def test_what_draws_draws_the_same_and_leaves_the_streams_alone() -> None:
    view = View(_data([], [{"name": "RandomCrop", "size": 3}, TO_TENSOR]), seed=5)
    image = Image.effect_noise((20, 20), 50).convert("RGB")
    torch.manual_seed(1)
    first = view(image)
    draw = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), draw)
    assert torch.equal(view(image), first)
    assert first.shape == (3, 3, 3)


def test_an_array_of_many_bands_is_resized_and_cropped() -> None:
    data = _data([{"name": "RandomCrop", "size": 7}], [])
    data.TRAIN.IMAGE_MODE = "stored"
    across = np.linspace(0, 4000, 24, dtype=np.float32)
    image = np.broadcast_to(across[None, :, None], (16, 24, 5)).copy()
    made = View(data, seed=0)(image)
    # Resized to 8 x 12, cut to 7 x 7: each pixel is in the middle of two old ones.
    middle = across.reshape(12, 2).mean(1)[2:9]
    assert made.shape == (5, 7, 7)
    np.testing.assert_allclose(made, np.broadcast_to(middle, (5, 7, 7)), rtol=1e-5)


# ---- index


def test_nearest_is_by_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 2)  # in several pieces
    rows = torch.tensor([[1.0, 0.0], [0.0, 5.0], [-2.0, 0.0], [3.0, 3.0], [0.0, -1.0]])
    index = FeatureIndex(F.normalize(rows), None, torch.arange(len(rows)))
    similar, numbers = index.nearest(torch.tensor([10.0, 1.0]), 3)
    assert numbers == [0, 3, 1]
    norm = 101**0.5
    assert similar == pytest.approx([10 / norm, 11 / norm / 2**0.5, 1 / norm], abs=1e-6)
    assert len(index.nearest(torch.tensor([1.0, 0.0]), 99)[1]) == 5
