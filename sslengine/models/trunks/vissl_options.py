"""`config.MODEL.TRUNK.*`, with VISSL's keys, of the trunks in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sslengine.config.ranges import above, at_least, choice
from sslengine.config.sections import section

# Classy Vision's names of the published RegNets.
REGNETS = (
    *(f"regnet_x_{size}" for size in ("400mf", "800mf", "1.6gf", "3.2gf", "8gf", "16gf", "32gf")),
    *(f"regnet_y_{size}" for size in ("400mf", "800mf", "1.6gf", "3.2gf", "8gf", "16gf", "32gf")),
    *(f"regnet_y_{size}" for size in ("64gf", "128gf", "256gf")),
    *(f"regnet_z_{size}" for size in ("500mf", "4gf")),
)
STEMS = ("res_stem_cifar", "res_stem_in", "simple_stem_in")
BLOCKS = (
    "vanilla_block", "res_basic_block", "res_bottleneck_block", "res_bottleneck_linear_block",
)  # fmt: skip


@section("MODEL.TRUNK.REGNET")
@dataclass
class RegNetOptions:
    """A published RegNet by its name, a RegNet by its five parameters, or any stages (anynet)."""

    # regnet_y_16gf and the like; anynet; "" for the RegNet that depth .. group_width describe.
    name: str = choice("", "anynet", *REGNETS)
    # Number of blocks.
    depth: int | None = at_least(1, None)
    # Width of the first block.
    w_0: int | None = at_least(8, None)
    # How much wider each block is than the one before.
    w_a: float | None = at_least(0, None)
    # Widths are rounded to w_0 times a power of w_m.
    w_m: float | None = above(1, None)
    # Width of a group.
    group_width: int | None = at_least(1, None)
    # Width inside a block, divided by the block's width.
    bottleneck_multiplier: float | None = None
    # anynet: one number for each stage.
    depths: list[int] = field(default_factory=list)
    # anynet: widths of the stages.
    widths: list[int] = field(default_factory=list)
    # anynet: widths of groups.
    group_widths: list[int] = field(default_factory=list)
    # anynet: width inside the blocks of each stage, divided by the stage's width.
    bottleneck_multipliers: list[float] = field(default_factory=list)
    # anynet: strides of the stages.
    strides: list[int] = field(default_factory=list)
    # res_stem_cifar, res_stem_in or simple_stem_in; null: simple_stem_in.
    stem_type: str | None = choice(None, *STEMS, *map(str.upper, STEMS))
    # Channels of the stem; null: 32.
    stem_width: int | None = None
    # Added to the variance in batch norms; null: 1e-5.
    bn_epsilon: float | None = None
    # The share of a new batch in the running statistics of batch norms; null: 0.1.
    bn_momentum: float | None = None
    # vanilla_block, res_basic_block, res_bottleneck_block or res_bottleneck_linear_block; null:
    # res_bottleneck_block. This key and those below cannot be set for a published name.
    block_type: str | None = choice(None, *BLOCKS, *map(str.upper, BLOCKS))
    # relu or silu; null: relu.
    activation: str | None = choice(None, "relu", "silu", "RELU", "SILU")
    # Squeeze and excitation; null: true.
    use_se: bool | None = None
    # Width inside squeeze and excitation, divided by the width of a block's input; null: 0.25.
    se_ratio: float | None = None

    RULE: ClassVar[tuple[str, ...]] = ("depth", "w_0", "w_a", "w_m", "group_width")
    STAGES: ClassVar[tuple[str, ...]] = (
        "depths",
        "widths",
        "group_widths",
        "bottleneck_multipliers",
        "strides",
    )
    OUTSIDE_BLOCKS: ClassVar[tuple[str, ...]] = (
        "stem_type",
        "stem_width",
        "bn_epsilon",
        "bn_momentum",
    )
    BLOCKS: ClassVar[tuple[str, ...]] = ("block_type", "activation", "use_se", "se_ratio")

    def given(self, *keys: str) -> dict[str, Any]:
        """Return those of the keys that are set, and their values."""
        values = {key: getattr(self, key) for key in keys}
        return {key: value for key, value in values.items() if value not in (None, [])}

    def check(self) -> Iterator[str]:
        if self.name == "anynet":
            yield from self._stage_problems()
        elif self.name:
            fixed = (*self.STAGES, *self.BLOCKS, *self.RULE, "bottleneck_multiplier")
            yield from self._unused(f"name {self.name!r} determines it", *fixed)
        else:
            yield from self._unused("has an effect only with name: anynet", *self.STAGES)
            yield from self._rule_problems()

    def _unused(self, reason: str, *keys: str) -> Iterator[str]:
        for key in self.given(*keys):
            yield f"{key}: {reason}; remove it."

    def _stage_problems(self) -> Iterator[str]:
        unused = "has no effect with name: anynet"
        yield from self._unused(unused, *self.RULE, "bottleneck_multiplier")
        lengths = {key: len(getattr(self, key)) for key in self.STAGES}
        if len(set(lengths.values())) != 1 or not self.depths:
            counts = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            yield f"depths: anynet requires one number per stage in each list; {counts}."

    def _rule_problems(self) -> Iterator[str]:
        rule = self.given(*self.RULE)
        missing = [key for key in self.RULE if key not in rule]
        if rule and missing:
            yield f"{missing[0]}: a RegNet requires all of {', '.join(self.RULE)}."
        elif rule and rule["w_0"] % 8:
            yield f"w_0: expected a multiple of 8, got {self.w_0}."


@section("MODEL.TRUNK.EFFICIENT_NETS")
@dataclass
class EfficientNetOptions:
    # B0 .. B7: the network's width and depth.
    model_version: str = choice(*(f"B{size}" for size in range(8)))
    # The share of a new batch in the running statistics of batch norms.
    bn_momentum: float = 0.01
    # Added to the variance in batch norms.
    bn_epsilon: float = 0.001
    # Chance that the last block is skipped; it grows linearly from 0.
    drop_connect_rate: float = at_least(0, 0.2, below=1)
    # Widths are multiples of this.
    width_divisor: int = at_least(1, 8)
    # The smallest width; null: width_divisor.
    min_width: int | None = None
    # Squeeze and excitation.
    use_se: bool = True


@section("MODEL.TRUNK.CONVIT")
@dataclass
class ConvitOptions:
    """The options of ConViT in addition to those of VISION_TRANSFORMERS."""

    # How many of the first layers have gated positional self-attention.
    N_GPSA_LAYERS: int = at_least(0, 10)
    # How strongly a head initially attends to one neighbour; 0: 1 / index of the layer, from 1.
    LOCALITY_STRENGTH: float = 1.0
    # Copies of each of the three relative coordinates.
    LOCALITY_DIM: int = at_least(1, 10)
    # Initialise gated layers so that they compute like a convolution.
    USE_LOCAL_INIT: bool = True


@section("MODEL.TRUNK.MOBILE_NET")
@dataclass
class MobileNetOptions:
    # mobilenetv3_tv: batch norms have timm's eps 1e-5 and momentum 0.1; false: 1e-3 and 0.01.
    TIMM_BN: bool = False
    # mobilenetv3_timm: without the last convolution, which the head mobilenet_v3_head_timm has.
    TRUNK_ONLY: bool = True


@section("MODEL.TRUNK.RESNETS_SK")
@dataclass
class ResNetSKOptions:
    """SimCLRv2's ResNet with selective kernels."""

    # Layers: 50, 101 or 152.
    DEPTH: int = choice(152, 101, 50)
    # A factor on the channels of every layer; may be below 1.
    WIDTH_MULTIPLIER: float = 3
    # Width of the network that mixes two kernels, as a share of the channels; 0: one kernel.
    SK_RATIO: float = at_least(0, 0.0625)

    def channels(self) -> int:
        return round(64 * self.WIDTH_MULTIPLIER)

    def check(self) -> Iterator[str]:
        if self.channels() < 2:
            yield f"WIDTH_MULTIPLIER: {self.WIDTH_MULTIPLIER:g} leaves a layer without channels."
