"""Against Pillow, which is to be met to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sslengine.data.augment import operations as ops
from sslengine.data.augment.operation import Given
from sslengine.data.augment.operations.blur import boxes
from tests.data.augment.backends.device.cases import by_pillow, noise


def blur(pixels: Tensor, weights: Tensor, reach: int) -> Tensor:
    return ops.Blur.on_device(pixels, Given(weights, reach))


def blurred(pixels: Tensor, radius: float) -> Tensor:
    reach, weight = boxes(np.full(len(pixels), radius, np.float32))
    return blur(pixels, torch.from_numpy(weight), int(reach[0]))


def radii() -> list[float]:
    drawn = np.random.default_rng(0).uniform(0.05, 2.1, 60).tolist()
    return [*drawn, 0.0, 1e-4, 0.1, 1.2247448, 1.2247449, 2.0, 2.4494898, 3.3, 5.0, 8.0, 20.0]


@pytest.mark.parametrize("size", [(40, 37), (5, 7), (1, 2), (3, 1)])
def test_radii_of_all_sizes_on_images_of_all_sizes(size: tuple[int, int]) -> None:
    pixels = noise(1, 3, *size)
    for radius in radii():
        expected = by_pillow(pixels[0], [ops.Blur(radius)])
        assert torch.equal(blurred(pixels, radius)[0], expected), radius


def test_black_and_white() -> None:
    """The ends of what fits into 32 bits."""
    pixels = torch.zeros(1, 3, 30, 30, dtype=torch.uint8)
    pixels[0, 0] = 255
    pixels[0, 1, ::2] = 255
    pixels[0, 2, 14:16, 14:16] = 255
    for radius in radii():
        expected = by_pillow(pixels[0], [ops.Blur(radius)])
        assert torch.equal(blurred(pixels, radius)[0], expected), radius


def test_each_image_has_a_radius_of_its_own() -> None:
    pixels, radii = noise(5, 3, 20, 30), [0.1, 0.4, 0.7, 0.9, 1.2]
    reach, weight = boxes(np.array(radii, np.float32))
    assert not reach.any()
    made = blur(pixels, torch.from_numpy(weight), 0)
    for image, radius, after in zip(pixels, radii, made, strict=True):
        assert torch.equal(after, by_pillow(image, [ops.Blur(radius)]))


def test_boxes_have_the_variance_of_the_gaussian() -> None:
    """Three of them in a row: of weight 1 in the middle, and a part of it at either end."""
    for radius in (0.3, 1.0, 1.9, 4.2):
        (reach,), (weight,) = boxes(np.array([radius], np.float32))
        inner = float(weight) / 2**24
        end = (1 - (2 * reach + 1) * inner) / 2
        places = np.arange(-reach - 1, reach + 2)
        box = np.array([end, *[inner] * (2 * reach + 1), end])
        assert 3 * box @ places**2 == pytest.approx(radius**2, rel=1e-5)


@pytest.mark.parametrize("reach", [0, 1, 2])
def test_the_kernel_is_one_graph(reach: int) -> None:
    pixels = noise(2, 3, 8, 8)
    weight = torch.tensor([4e6, 3e6]) // 1
    torch._dynamo.reset()
    compiled = torch.compile(blur, backend="eager", fullgraph=True)
    assert torch.equal(compiled(pixels, weight, reach), blur(pixels, weight, reach))
