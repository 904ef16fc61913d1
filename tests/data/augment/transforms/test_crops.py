"""Boxes and the stream afterwards are torchvision's."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import InterpolationMode, RandomResizedCrop

from sslengine.data.augment.drawing import draw_of
from sslengine.data.augment.operations import Crop
from sslengine.data.augment.transforms.crops import ResizedCrop

TRANSFORMS = [
    RandomResizedCrop(224),
    RandomResizedCrop((20, 31), (0.05, 0.14), interpolation=InterpolationMode.BICUBIC),
    RandomResizedCrop(7, (0.9, 1.0), (0.3, 0.4)),
    RandomResizedCrop(7, (1.0, 1.0), (2.0, 2.5)),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("size", [(375, 500), (500, 375), (1, 1), (400, 3), (3, 400), (64, 64)])
def test_as_torchvision(transform: RandomResizedCrop, size: tuple[int, int]) -> None:
    draw = draw_of(transform)
    assert isinstance(draw, ResizedCrop)
    image = torch.empty(3, *size)
    for seed in range(100):
        torch.manual_seed(seed)
        box = transform.get_params(image, transform.scale, transform.ratio)
        after = torch.rand(1)
        torch.manual_seed(seed)
        (op,) = draw(size)
        assert op == Crop(*box, to=tuple(transform.size), interpolation=transform.interpolation)
        assert torch.rand(1) == after
