"""Against Pillow, which is to be met to the bit."""

from __future__ import annotations

import pytest
import torch

from sslengine.data.augment import operations as ops
from tests.data.augment.backends.device.cases import by_pillow, kernel_of, noise

sharpness = kernel_of(ops.Sharpness)

FACTORS = [0.0, 0.1, 0.63, 1.0, 1.37, 1.9, 3.0, -0.5]
SIZES = [(1, 1), (1, 2), (2, 9), (9, 2), (3, 3), (4, 5), (31, 17), (90, 71)]


@pytest.mark.parametrize("size", SIZES)
def test_each_image_has_a_factor_of_its_own(size: tuple[int, int]) -> None:
    pixels = noise(len(FACTORS), 3, *size)
    before = pixels.clone()
    made = sharpness(pixels, torch.tensor(FACTORS))
    assert torch.equal(pixels, before)
    for image, factor, after in zip(pixels, FACTORS, made, strict=True):
        assert torch.equal(after, by_pillow(image, [ops.Sharpness(factor)]))


def test_it_is_one_graph() -> None:
    pixels, factors = noise(2, 3, 8, 8), torch.tensor([0.5, 1.5])
    compiled = torch.compile(sharpness, backend="eager", fullgraph=True)
    assert torch.equal(compiled(pixels, factors), sharpness(pixels, factors))
