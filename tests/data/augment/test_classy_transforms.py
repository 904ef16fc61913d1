"""Classy Vision's transforms give what they give when Classy Vision builds them."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch

from sslengine.data.augment.classy_transforms import NAMES, TRANSFORM_REGISTRY
from sslengine.data.augment.pipeline import build_transform
from sslengine.registry import TRANSFORMS
from tests.data.pictures import picture

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from classy_vision.dataset import transforms as classy


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "imagenet_augment", "crop_size": 12},
        {"name": "imagenet_no_augment", "resize": 20, "crop_size": 16},
    ],
)
def test_of_images(entry: dict[str, Any]) -> None:
    given = []
    for build in (lambda: build_transform(entry, "here"), lambda: classy.build_transform(entry)):
        torch.manual_seed(3)
        random.seed(3)
        given.append(build()(picture(1, side=32)))
    ours, theirs = given
    assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def test_of_tensors() -> None:
    image = torch.rand(3, 8, 8)
    torch.manual_seed(0)
    ours = build_transform({"name": "lighting", "alphastd": 0.5}, "here")(image)
    torch.manual_seed(0)
    assert torch.equal(ours, classy.build_transform({"name": "lighting", "alphastd": 0.5})(image))
    assert not torch.equal(ours, image)


def test_those_that_are_declared_are_there() -> None:
    assert set(NAMES) <= {*TRANSFORMS.names()}
    assert all(TRANSFORMS.get(name) is TRANSFORM_REGISTRY[name] for name in NAMES)
