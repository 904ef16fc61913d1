"""Blocks that are computed again give the gradients and statistics of those that keep everything."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from sslengine.errors import TrainingError
from sslengine.models.trunks.library import FINAL, Feature, LibraryTrunk, adopt, rows_of_blocks
from sslengine.models.trunks.recompute import recomputed

from . import checks


class Block(nn.Module):
    """Counts how often it was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 3, 1)
        self.calls = 0

    def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
        self.calls += 1
        return torch.sin(self.inner(x)) * factor


class Greedy(Block):
    """Changes what it gets."""

    def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
        return super().forward(x.mul_(2), factor)


class Network(nn.Module):
    def __init__(self, *kinds: type[Block]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 1)
        self.blocks = nn.ModuleList(kind() for kind in kinds)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            x = block(x, float(number + 1)) + 1
        return x.mean((2, 3))


def made(*kinds: type[Block], recomputes: bool = True) -> Any:
    torch.manual_seed(0)
    ours = adopt(Network(*(kinds or [Block] * 4)), LibraryTrunk, {FINAL: Feature(("",))})
    ours.section, ours.block_names = "config.MODEL.TRUNK.TOY", r"blocks\.\d+"
    if recomputes:
        ours.checkpoint_activations()
    return ours.double()


def outcome(ours: LibraryTrunk, *names: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)
    given = ours(images, names)
    sum(each.square().sum() for each in given).backward()
    return [*given, *(parameter.grad for parameter in ours.parameters())]


@pytest.mark.parametrize("names", [(), ("blocks.1", FINAL), ("blocks.2.inner", "blocks.3")])
def test_outputs_and_gradients_are_the_same(names: tuple[str, ...]) -> None:
    ours, plain = outcome(made(), *names), outcome(made(recomputes=False), *names)
    for one, two in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, two)


def test_each_block_is_computed_twice_with_gradients_and_once_without() -> None:
    ours = made()
    with torch.no_grad():
        ours(torch.randn(2, 3, 4, 4).double())
    assert [block.calls for block in ours.blocks] == [1] * 4
    other = copy.deepcopy(ours)  # recomputes its own blocks
    outcome(ours)
    assert [block.calls for block in ours.blocks] == [3] * 4
    assert [block.calls for block in other.blocks] == [1] * 4


def test_a_block_that_changes_its_input_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"ACTIVATION_CHECKPOINTING: a Greedy changes its inpu"):
        outcome(made(Block, Greedy))


def test_blocks_that_get_a_list_which_grows_afterwards() -> None:
    network = torchvision.models.DenseNet(4, (2, 1, 1, 1), 8)
    table = {"norm0": Feature(("features.norm0",)), FINAL: Feature(("",))}
    ours = adopt(network, LibraryTrunk, table)
    ours.block_names = rows_of_blocks(ours)
    checks.checkpointing_changes_nothing(ours, sizes=((32, 32), (32, 32)))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_statistics_move_once(momentum: float | None) -> None:
    norm, plain = nn.BatchNorm1d(3, momentum=momentum), nn.BatchNorm1d(3, momentum=momentum)
    for _ in range(2):
        x = torch.randn(8, 3, requires_grad=True)
        recomputed([norm], norm, x).square().sum().backward()
        plain(x.detach())
    assert norm.momentum == momentum
    assert int(norm.num_batches_tracked) == 2
    for ours, expected in zip(norm.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, expected)
