"""Classy Vision's transforms give what they give when Classy Vision builds them; L*a*b*."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sslengine.contrib.transforms import NAMES, TRANSFORM_REGISTRY, ImgPil2LabTensor
from sslengine.data.augment.pipeline import Pipeline, build_transform
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


# ---- L*a*b*

# sRGB under D65 and the observer of 2 degrees, as Lindbloom's and EasyRGB's calculators have them.
PUBLISHED = {
    (0, 0, 0): (0.0, 0.0, 0.0),
    (255, 255, 255): (100.0, 0.0, 0.0),
    (255, 0, 0): (53.24, 80.09, 67.20),
    (0, 255, 0): (87.73, -86.18, 83.18),
    (0, 0, 255): (32.30, 79.19, -107.86),
    (255, 255, 0): (97.14, -21.55, 94.48),
    (0, 255, 255): (91.11, -48.09, -14.13),
    (255, 0, 255): (60.32, 98.23, -60.82),
    (128, 128, 128): (53.59, 0.0, 0.0),
}


@pytest.mark.parametrize("colour", PUBLISHED)
def test_published_colours(colour: tuple[int, int, int]) -> None:
    lab = ImgPil2LabTensor()(Image.new("RGB", (3, 2), colour))
    assert lab.shape == (3, 2, 3)
    assert lab.dtype is torch.float32
    expected = torch.tensor(PUBLISHED[colour]).view(3, 1, 1).expand(3, 2, 3)
    # Matrices with other last digits than OpenCV's move the second decimal.
    torch.testing.assert_close(lab, expected, atol=0.03, rtol=0)


def test_a_colour_after_the_other_by_the_definition() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    lab = ImgPil2LabTensor()(Image.fromarray(pixels)).permute(1, 2, 0)
    for row in range(5):
        for column in range(7):
            expected = _lab(*(float(each) / 255 for each in pixels[row, column]))
            assert lab[row, column].tolist() == pytest.approx(expected, abs=2e-4)


def _lab(*levels: float) -> tuple[float, float, float]:
    r, g, b = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in levels
    )
    x = (0.412453 * r + 0.357580 * g + 0.180423 * b) / 0.950456
    y = 0.212671 * r + 0.715160 * g + 0.072169 * b
    z = (0.019334 * r + 0.119193 * g + 0.950227 * b) / 1.088754
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def test_the_images_that_indices_name() -> None:
    """VISSL's YAML always gives them."""
    pipeline = Pipeline([{"name": "ImgPil2LabTensor", "indices": [1]}], "here")
    images = [Image.new("RGB", (2, 2)), Image.new("L", (2, 2), 255)]
    sample = pipeline({"data": images, "data_idx": [0, 0], "data_valid": [1, 1], "label": [0, 0]})
    assert sample["data"][0] is images[0]
    assert sample["data"][1][0].tolist() == pytest.approx(np.full((2, 2), 100.0))
