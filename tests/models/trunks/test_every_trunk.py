"""What every trunk does: images of any number of channels, VISSL's names, recomputed activations."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from sslengine.errors import ConfigError, TrainingError
from sslengine.models.build import build_trunk
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.library import FINAL, Feature, LibraryTrunk, adopt, rows_of_blocks
from sslengine.registry import TRUNKS

from . import checks

TINY = {"DEPTH": 18, "BLOCKS": [1, 1, 1, 1], "WIDTH_MULTIPLIER": 0.125}
VIT = {"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "HIDDEN_DIM": 24, "NUM_HEADS": 2, "MLP_DIM": 8}
RULE = {"depth": 3, "w_0": 16, "w_a": 12.0, "w_m": 2.0, "group_width": 8}
SMALL = {"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "HIDDEN_DIM": 24, "NUM_HEADS": 2}
SWIN = {"IMAGE_SIZE": 32, "EMBED_DIM": 24, "DEPTHS": [1, 1], "NUM_HEADS": [2, 2], "WINDOW_SIZE": 4}
TRUNKS_BY_NAME: list[tuple[str, dict[str, Any]]] = [
    ("resnet", {"RESNETS": TINY}),
    ("resnet", {"RESNETS": {**TINY, "STEM": "small", "NORM": "LayerNorm"}}),
    ("vision_transformer", {"VISION_TRANSFORMERS": VIT}),
    ("convit", {"VISION_TRANSFORMERS": VIT, "CONVIT": {"N_GPSA_LAYERS": 1}}),
    ("beit", {"BEIT": SMALL}),
    ("xcit", {"XCIT": SMALL}),
    ("swin_transformer", {"SWIN_TRANSFORMER": SWIN}),
    ("convnext", {"CONVNEXT": {"DEPTH": [1, 1, 1, 1], "DIMS": [8, 8, 8, 8]}}),
    *(
        ("regnet", {"REGNET": {**RULE, "stem_type": stem}})
        for stem in ("simple_stem_in", "res_stem_cifar", "res_stem_in")
    ),
    ("efficientnet", {}),
    ("mobilenetv3_tv", {}),
    ("mobilenetv3_timm", {}),
    ("alexnet", {}),
    ("resnet_sk", {"RESNETS_SK": {"DEPTH": 50, "WIDTH_MULTIPLIER": 0.25}}),
    ("timm", {"TIMM": {"model": "test_vit", "arguments": {"img_size": 32}}}),
    ("torchvision", {"TORCHVISION": {"model": "shufflenet_v2_x0_5"}}),
]


def trunk(channels: int | str, name: str, **sections: Any) -> Trunk:
    tree = {"TRUNK": {"NAME": name, **sections}, "INPUT_CHANNELS": channels}
    made: Any = checks.options(tree)
    return build_trunk(made)


@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize(("name", "sections"), TRUNKS_BY_NAME)
def test_every_trunk_computes_with_all_channels(
    name: str, sections: dict[str, Any], channels: int
) -> None:
    model = trunk(channels, name, **sections)
    side = 64 if name == "alexnet" else 32
    x = torch.rand(2, channels, side, side, requires_grad=True)
    (features,) = model.train()(x)
    features.square().sum().backward()
    assert x.grad is not None
    assert (x.grad.abs().sum((0, 2, 3)) > 0).all()
    with pytest.raises(ConfigError, match=rf"INPUT_CHANNELS: the trunk takes images of {channels}"):
        model(torch.rand(2, 3, side, side))


@pytest.mark.parametrize(("name", "sections"), TRUNKS_BY_NAME)
def test_names_of_vissl_go_there_and_back(name: str, sections: dict[str, Any]) -> None:
    checks.names_round_trip(trunk("auto", name, **sections))


DROPS = {"DROP_PATH_RATE": 0.3, "DROPOUT_RATE": 0.1}
DEEPER = {**VIT, **DROPS, "NUM_LAYERS": 3}
SQUARES = ((32, 32), (32, 32))
RECOMPUTED: dict[str, dict[str, Any]] = {
    "resnet": {"RESNETS": {**TINY, "BLOCKS": [2, 1, 2, 1]}},
    "vision_transformer": {"VISION_TRANSFORMERS": DEEPER},
    "convit": {"VISION_TRANSFORMERS": DEEPER, "CONVIT": {"N_GPSA_LAYERS": 1}},
    "beit": {"BEIT": {**SMALL, **DROPS, "USE_REL_POS_BIAS": True, "INIT_VALUES": 0.1}},
    "xcit": {"XCIT": {**SMALL, **DROPS}},
    "swin_transformer": {"SWIN_TRANSFORMER": {**SWIN, "DROP_PATH_RATE": 0.3}},
    "convnext": {"CONVNEXT": {"DEPTH": [1, 2, 1, 1], "DIMS": [8] * 4, "DROP_PATH_RATE": 0.3}},
    "regnet": {"REGNET": RULE},
    "efficientnet": {},
    "alexnet": {},
    "mobilenetv3_tv": {},
    "mobilenetv3_timm": {},
    "timm": {"TIMM": {"model": "test_byobnet", "arguments": {"drop_path_rate": 0.3}}},
    "torchvision": {"TORCHVISION": {"model": "shufflenet_v2_x0_5"}},
}
LARGE = ("mobilenetv3_tv", "mobilenetv3_timm")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in RECOMPUTED]
)
def test_activation_checkpointing_changes_nothing(name: str) -> None:
    sizes = {"beit": SQUARES, "alexnet": ((64, 64), (96, 64))}.get(name, checks.TWO_SIZES)
    torch.manual_seed(0)
    checks.checkpointing_changes_nothing(trunk("auto", name, **RECOMPUTED[name]), sizes)


def test_every_trunk_that_ships_is_here() -> None:
    shown = {TRUNKS.get(name) for name, _ in TRUNKS_BY_NAME}
    ours = {
        each for each in map(TRUNKS.get, TRUNKS.names()) if each.__module__.startswith("sslengine.")
    }
    assert shown == ours


class Mine(Trunk):
    feature_names = ("flat",)

    def features(self, x: torch.Tensor, wanted: Any) -> dict[str, torch.Tensor]:
        return {"flat": x.flatten(1)}


def test_a_trunk_of_ones_own_that_takes_three() -> None:
    name = f"{__name__}:Mine"
    assert trunk("auto", name)(torch.rand(1, 3, 2, 2))[0].shape == (1, 12)
    with pytest.raises(ConfigError, match=r"have 4 channels.*Mine' takes 3.*`in_chans`"):
        trunk(4, name)


# ---- base


class Powers(Trunk):
    feature_names = ("first", "second", "third")

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        return {name: x ** (1 + self.feature_names.index(name)) for name in wanted}


X = torch.tensor([2.0, 3.0])


def values(features: list[Tensor]) -> list[list[float]]:
    return [feature.tolist() for feature in features]


def test_the_last_name_is_the_final_feature() -> None:
    assert values(Powers()(X)) == [[8.0, 27.0]]


def test_features_come_in_the_order_asked_for_and_may_repeat() -> None:
    features = Powers()(X, ["third", "first", "third"])
    assert values(features) == [[8.0, 27.0], [2.0, 3.0], [8.0, 27.0]]


def test_features_are_computed_in_the_order_asked_for() -> None:
    """The order of a set of names, and so that of sums of gradients, differs between processes."""

    class Many(Powers):
        feature_names = tuple(f"last{letter}" for letter in "HBFDGACE")

        def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
            asked.extend(wanted)
            return super().features(x, wanted)

    asked: list[str] = []
    Many()(X, [*Many.feature_names, "lastB"])
    assert asked == list(Many.feature_names)


# ---- Blocks that are computed again give the gradients and statistics of those that keep everything


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
