"""Tables against Pillow's, which are to be met to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sslengine.data.augment import operations as ops
from sslengine.data.augment.operation import Operation
from tests.data.augment.backends.device.cases import Kernel, by_pillow, kernel_of, noise

posterize, invert, autocontrast, equalize = map(
    kernel_of, (ops.Posterize, ops.Invert, ops.AutoContrast, ops.Equalize)
)
CASES: list[tuple[Kernel, Operation, float]] = [
    *((posterize, ops.Posterize(bits), 256.0 - 2 ** (8 - bits)) for bits in range(1, 9)),
    (invert, ops.Invert(), 0.0),
    (autocontrast, ops.AutoContrast(), 0.0),
    (equalize, ops.Equalize(), 0.0),
]
SIZES = [(1, 1), (1, 2), (3, 5), (15, 17), (20, 30), (120, 97)]


BY_VALUES = CASES[-2:]  # their tables depend on the image


def _name(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("kernel", "operation", "parameter"), CASES, ids=_name)
def test_sizes_and_distributions(kernel: Kernel, operation: Operation, parameter: float) -> None:
    for height, width in SIZES:
        pixels = noise(8, 3, height, width)
        pixels[1] = (pixels[1].int() ** 2 // 255).to(torch.uint8)
        pixels[2] //= 9
        pixels[3] = torch.where(pixels[3] < 99, 7, 200)
        pixels[4] = 77
        before = pixels.clone()
        made = kernel(pixels, torch.full((8,), parameter))
        assert made.dtype == torch.uint8
        assert torch.equal(pixels, before)
        for image, after in zip(pixels, made, strict=True):
            assert torch.equal(after, by_pillow(image, [operation]))


@pytest.mark.parametrize(("kernel", "operation", "parameter"), BY_VALUES, ids=_name)
def test_from_many_levels_to_many(kernel: Kernel, operation: Operation, parameter: float) -> None:
    """At each there are floats that come out just below a whole number."""
    some = torch.arange(256)
    ranges = [some.clamp(low, high) for low in range(0, 256, 9) for high in range(low, 256, 4)]
    count = len(ranges) // 3
    pixels = torch.stack(ranges[: 3 * count]).to(torch.uint8).view(count, 3, 1, 256)
    for image, after in zip(pixels, kernel(pixels, torch.zeros(count)), strict=True):
        assert torch.equal(after, by_pillow(image, [operation]))


@pytest.mark.parametrize("kernel", list(dict.fromkeys(kernel for kernel, _, _ in CASES)))
def test_a_kernel_is_one_graph(kernel: Kernel) -> None:
    pixels, parameters = noise(2, 3, 8, 8), torch.tensor([192.0, 240.0])
    torch._dynamo.reset()
    compiled: Kernel = torch.compile(kernel, backend="eager", fullgraph=True)
    expected: Tensor = kernel(pixels, parameters)
    assert torch.equal(compiled(pixels, parameters), expected)
