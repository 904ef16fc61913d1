"""What recomputes its parts gives the outputs, gradients and statistics of what keeps everything."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from sslengine.errors import TrainingError
from sslengine.models.trunks import recompute
from sslengine.models.trunks.library import FINAL, Feature, LibraryTrunk, adopt, rows_of_blocks
from sslengine.models.trunks.recompute import recomputed

from . import checks
from .test_library import trunk


class Block(nn.Module):
    """How often it was computed, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 3, 1)
        self.calls = 0

    def forward(self, x: Tensor, factor: float | Tensor = 1.0) -> Tensor:
        self.calls += 1
        return torch.sin(self.inner(x)) * factor


class Greedy(Block):
    """Changes what it gets."""

    def forward(self, x: Tensor, factor: float | Tensor = 1.0) -> Tensor:
        return super().forward(x.mul_(2), factor)


class Network(nn.Module):
    """`between`: what stands between blocks, and what they get beside their input."""

    def __init__(self, between: Callable[[Network, int, Tensor], tuple[Any, ...]]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 1)
        kinds = (Block, Block, Greedy, Block, Block, Block)
        self.blocks = nn.ModuleList(kind() for kind in kinds)
        self.same = nn.Identity()
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            x = block(*self.between(self, number, x))
        return x.mean((2, 3))


BETWEEN: dict[str, Callable[[Network, int, Tensor], tuple[Any, ...]]] = {
    "nothing": lambda network, number, x: (x,),
    "an identity": lambda network, number, x: (network.same(x),),
    "a number": lambda network, number, x: (x + 1,) if number == 3 else (x,),
    "a number, in place": lambda network, number, x: (x.add_(1) if number == 4 else x,),
    "one more input, the same": lambda network, number, x: (x, network.stem.weight[0, 0]),
    "one more input, others": lambda network, number, x: (x, float(number + 1)),
}  # fmt: skip


def made(between: Callable[[Network, int, Tensor], tuple[Any, ...]]) -> LibraryTrunk:
    torch.manual_seed(0)
    ours = adopt(Network(between), LibraryTrunk, {FINAL: Feature(("",))})
    ours.section, ours.block_names = "config.MODEL.TRUNK.TOY", r"blocks\.\d+"
    return ours.double()


def outcome(ours: LibraryTrunk, names: Collection[str]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)
    given = ours(images, names)
    sum(each.square().sum() for each in given).backward()
    return [*given, *(parameter.grad for parameter in ours.parameters())]


@pytest.mark.parametrize("between", list(BETWEEN))
@pytest.mark.parametrize("parts", [1, 2, 3, 6])
@pytest.mark.parametrize("names", [(), ("blocks.1", "same", FINAL), ("blocks.2.inner", "blocks.4")])
def test_parts_change_nothing(between: str, parts: int, names: tuple[str, ...]) -> None:
    if "same" in names and between != "an identity":
        names = names[::2]
    plain, other = made(BETWEEN[between]), made(BETWEEN[between])
    other.checkpoint_activations(parts)
    for one, two in zip(outcome(other, names), outcome(plain, names), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(
    ("between", "wanted", "expected"),
    [
        ("nothing", 1, [6]), ("nothing", 2, [3, 3]), ("nothing", 6, [1, 2, 1, 1, 1]),
        ("a number", 1, [3, 3]), ("a number, in place", 1, [4, 2]),
        ("one more input, others", 1, [1, 1, 1, 1, 1]),
    ],
)  # fmt: skip
def test_parts_are_as_many_as_asked_where_blocks_follow_each_other(
    between: str, wanted: int, expected: list[int]
) -> None:
    """The third block changes its input, and begins no part."""
    ours = made(BETWEEN[between])
    ours.checkpoint_activations(wanted)
    assert [len(part.blocks) for part in ours._parts] == expected


def test_each_block_is_computed_twice_with_gradients_and_once_without() -> None:
    ours: Any = made(BETWEEN["nothing"])
    ours.checkpoint_activations(2)
    with torch.no_grad():
        ours(torch.randn(2, 3, 4, 4).double())
    assert [block.calls for block in ours.blocks] == [1] * 6
    outcome(ours, ())
    assert [block.calls for block in ours.blocks] == [3] * 6


def test_a_pass_is_left_where_everything_was_found() -> None:
    for parts in (0, 3):
        ours: Any = made(BETWEEN["nothing"])
        ours.table["early"] = Feature(("blocks.1",))
        if parts:
            ours.checkpoint_activations(parts)
        ours(torch.randn(2, 3, 4, 4).double(), ["early"])
        assert [block.calls for block in ours.blocks] == [1, 1, 0, 0, 0, 0]


def test_a_copy_recomputes_its_own_blocks() -> None:
    ours: Any = made(BETWEEN["nothing"])
    ours.checkpoint_activations(2)
    other = copy.deepcopy(ours)
    outcome(other, ())
    assert [block.calls for block in ours.blocks] == [0] * 6
    assert all(block.calls == 2 for block in other.blocks)


def test_a_pass_that_goes_another_way_than_the_first_is_an_error() -> None:
    detour = []
    ours = made(lambda network, number, x: (x + 1,) if detour and number == 1 else (x,))
    ours.checkpoint_activations(1)
    outcome(ours, ())
    detour.append(1)
    with pytest.raises(
        TrainingError, match=r"input of a Block is not the output .*NUM_ACTIVATION_CHECKP"
    ):
        outcome(ours, ())


LIBRARY: list[tuple[str, str, dict[str, Any], int]] = [
    ("timm", "test_vit", {"img_size": 32}, 2), ("timm", "convnext_atto", {}, 2),
    ("timm", "resnet10t", {}, 2), ("torchvision", "resnet18", {}, 2),
    ("torchvision", "vit_b_16", {"image_size": 32}, 3),
]  # fmt: skip


@pytest.mark.parametrize(("library", "name", "arguments", "parts"), LIBRARY)
def test_networks_of_libraries_are_cut_into_so_many_parts(
    library: str, name: str, arguments: Any, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.device("meta"):
        ours = trunk(library, name, **arguments)
    ours.checkpoint_activations(parts)
    cuts: list[Any] = []
    monkeypatch.setattr(
        recompute, "checkpoint", lambda run, *x, **more: (cuts.append(1), run(*x))[1]
    )
    ours(torch.empty(2, 3, 32, 32, device="meta"))
    assert len(cuts) == parts


def test_blocks_that_get_a_list_which_grows_afterwards() -> None:
    network = torchvision.models.DenseNet(4, (2, 1, 1, 1), 8)
    ours = adopt(
        network, LibraryTrunk, {"norm0": Feature(("features.norm0",)), FINAL: Feature(("",))}
    )
    ours.block_names = rows_of_blocks(ours)
    checks.checkpointing_changes_nothing(ours, 2, sizes=((32, 32), (32, 32)))


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
