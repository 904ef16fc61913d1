"""Against Pillow, which is to be met to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sslengine.data.augment import operations as ops
from sslengine.data.augment.operation import Operation
from tests.data.augment.backends.device.cases import Kernel, by_pillow, kernel_of, noise

brightness, contrast, saturation, hue, grey, solarize = map(
    kernel_of,
    (ops.Brightness, ops.Contrast, ops.Saturation, ops.Hue, ops.Grey, ops.Solarize),
)


def turn(shift: float) -> float:
    """What adjust_hue of torchvision adds to the byte of the hue."""
    return float(np.array(shift * 255).astype(np.int32).astype(np.uint8))


CASES: list[tuple[Kernel, Operation, float]] = [
    *((brightness, ops.Brightness(factor), factor) for factor in (0.0, 0.37, 1.0, 1.71)),
    *((contrast, ops.Contrast(factor), factor) for factor in (0.0, 0.37, 1.0, 1.71)),
    *((saturation, ops.Saturation(factor), factor) for factor in (0.0, 0.37, 1.0, 1.71)),
    *((hue, ops.Hue(shift), turn(shift)) for shift in (0.0, 0.1, -0.013, 0.5, -0.5)),
    (grey, ops.Grey(), 0.0),
    *((solarize, ops.Solarize(threshold), threshold) for threshold in (0, 100, 256)),
]
NAMES = [str(operation) for _, operation, _ in CASES]
SOME, ALL = 1 << 20, 1 << 24


def colours(count: int) -> Tensor:
    """[1, 3, height, width]: all, or some at an odd step, which meets all values of a channel."""
    numbers = (torch.arange(count) * (ALL // count + (count < ALL))) % ALL
    planes = torch.stack([numbers >> 16, (numbers >> 8) & 255, numbers & 255])
    return planes.to(torch.uint8).view(1, 3, -1, 1024)


def assert_met(kernel: Kernel, operation: Operation, parameter: float, pixels: Tensor) -> None:
    made = kernel(pixels, torch.tensor([parameter]))
    assert made.dtype == torch.uint8
    assert torch.equal(made[0], by_pillow(pixels[0], [operation]))


@pytest.mark.parametrize(("kernel", "operation", "parameter"), CASES, ids=NAMES)
def test_colours_all_over_the_cube(kernel: Kernel, operation: Operation, parameter: float) -> None:
    assert_met(kernel, operation, parameter, colours(SOME))


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "operation", "parameter"), CASES, ids=NAMES)
def test_all_colours(kernel: Kernel, operation: Operation, parameter: float) -> None:
    for part in colours(ALL).chunk(16, dim=2):  # they take a hundred bytes a pixel
        assert_met(kernel, operation, parameter, part)


def test_hues_where_a_quotient_is_a_whole_number() -> None:
    """Greys apart, the only places where Pillow's floats decide: every colour of chroma 85 and
    of multiples of it, and the neighbours of the others."""
    low, chroma = torch.meshgrid(
        torch.arange(256), torch.tensor([5, 17, 85, 170, 255]), indexing="ij"
    )
    found = (low + chroma < 256).nonzero()
    low, chroma = low[tuple(found.T)], chroma[tuple(found.T)]
    between = (torch.arange(256)[:, None] * chroma) // 255
    corners = torch.stack(
        [low.expand_as(between), low + between, (low + chroma).expand_as(between)]
    )
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    pixels = torch.stack([corners[list(order)].flatten(1) for order in orders], 1)
    pixels = pixels.to(torch.uint8).view(1, 3, 6, -1)
    for shift in (0.0, 0.21):
        assert_met(hue, ops.Hue(shift), turn(shift), pixels)


def test_each_image_has_a_parameter_and_a_mean_of_its_own() -> None:
    pixels = noise(4, 3, 9, 13)
    pixels[2] //= 4
    factors = [0.3, 1.2, 0.9, 1.7]
    for kernel, kind in (
        (brightness, ops.Brightness),
        (contrast, ops.Contrast),
        (saturation, ops.Saturation),
    ):
        made = kernel(pixels, torch.tensor(factors))
        for image, factor, after in zip(pixels, factors, made, strict=True):
            assert torch.equal(after, by_pillow(image, [kind(factor)]))


def test_the_pixels_given_stay_as_they_are() -> None:
    pixels = noise(2, 3, 4, 5)
    before = pixels.clone()
    for kernel, _, parameter in CASES:
        kernel(pixels, torch.full((2,), parameter))
    assert torch.equal(pixels, before)


@pytest.mark.parametrize("kernel", list(dict.fromkeys(kernel for kernel, _, _ in CASES)))
def test_a_kernel_is_one_graph(kernel: Kernel) -> None:
    """So it may be compiled; and nothing in it asks for a value on the host."""
    pixels, parameters = noise(2, 3, 8, 8), torch.tensor([0.5, 100.0])
    torch._dynamo.reset()
    compiled = torch.compile(kernel, backend="eager", fullgraph=True)
    assert torch.equal(compiled(pixels, parameters), kernel(pixels, parameters))
