"""Positions for another grid, where torch is to be deterministic; timm's function is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor

from sslengine.models.trunks.patches import resampled
from tests.models.trunks.test_transformers import trunk_convit as convit
from tests.models.trunks.test_vision_transformer import trunk as vision_transformer


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def both(made: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The values, and the gradient of a sum in which each counts differently."""
    (gradient,) = torch.autograd.grad((made.double() * made.detach().double()).sum(), positions)
    return made.detach(), gradient


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("new", [(3, 3), (7, 5), (4, 12), (8, 6)])
def test_it_gives_what_timm_gives(
    new: tuple[int, int], before: int, bf16: bool, deterministic: None
) -> None:
    old = (8, 6)
    draw = torch.Generator().manual_seed(0)
    positions = torch.randn(1, before + 48, 5, generator=draw, requires_grad=True)
    expected = both(
        resample_abs_pos_embed(positions, [*new], [*old], num_prefix_tokens=before), positions
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = both(resampled(positions, old, new, before), positions)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_an_evaluation_first_changes_nothing(deterministic: None) -> None:
    positions = torch.randn(1, 48, 5, dtype=torch.float64, requires_grad=True)
    with torch.inference_mode():
        before = resampled(positions, (8, 6), (5, 5))
    assert both(resampled(positions, (8, 6), (5, 5)), positions)[0].equal(before)


def names_of(graph: Any) -> set[str]:
    """Of the operations whose gradients the graph computes."""
    found, left = set(), [graph]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.add(node)
            left += [each for each, _ in node.next_functions]
    return {type(each).__name__ for each in found}


@pytest.mark.parametrize("make", [vision_transformer, convit])
def test_trunks_do_without_the_kernel_then(make: Any) -> None:
    trunk, image = make().eval(), torch.randn(2, 3, 24, 24)

    def outputs() -> tuple[Tensor, bool]:
        output = trunk.features(image, ["lastCLS"])["lastCLS"]
        return output, any("Upsample" in each for each in names_of(output.grad_fn))

    usual, kernel = outputs()
    assert kernel
    torch.use_deterministic_algorithms(True)
    try:
        deterministic, kernel = outputs()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not kernel
    torch.testing.assert_close(deterministic, usual, rtol=1e-4, atol=1e-5)
