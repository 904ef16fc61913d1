"""`config.MODEL.TRUNK.*`: the options of all trunks, with VISSL's keys where VISSL has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sslengine.config.ranges import above, at_least, choice, empty_lists
from sslengine.config.sections import section


@dataclass
class ConvNextOptions:
    # Blocks of each of the four stages.
    DEPTH: list[int] = at_least(1, [3, 3, 27, 3])
    # Width of each of the four stages.
    DIMS: list[int] = at_least(1, [96, 192, 384, 768])
    # Stochastic depth of the last block; it grows linearly from 0.
    DROP_PATH_RATE: float = at_least(0, 0.0, below=1)

    def check(self) -> Iterator[str]:
        for key in ("DEPTH", "DIMS"):
            if len(getattr(self, key)) != 4:
                yield f"{key}: expected four numbers, got {getattr(self, key)}."


# ---- networks on patches of images


@dataclass
class PatchOptions:
    """What all of them have."""

    # The side of images for which the network is made.
    IMAGE_SIZE: int = at_least(1, 224)
    # The side of a patch, in pixels.
    PATCH_SIZE: int = at_least(1, 16)
    # A bias on queries, keys and values.
    QKV_BIAS: bool = False
    # Dropout on embeddings, and after attention and MLPs.
    DROPOUT_RATE: float = at_least(0, 0.0, below=1)
    # Dropout on the weights of attention.
    ATTENTION_DROPOUT_RATE: float = at_least(0, 0.0, below=1)
    # Stochastic depth of the last block; it grows linearly from 0.
    DROP_PATH_RATE: float = at_least(0, 0.0, below=1)

    def check(self) -> Iterator[str]:
        if self.IMAGE_SIZE % self.PATCH_SIZE:
            yield f"PATCH_SIZE: {self.PATCH_SIZE} does not divide IMAGE_SIZE {self.IMAGE_SIZE}."


@dataclass
class BlockOptions(PatchOptions):
    """And those whose blocks have one width."""

    # Blocks.
    NUM_LAYERS: int = at_least(1, 12)
    # Attention heads of each block.
    NUM_HEADS: int = at_least(1, 12)
    # Width of a token.
    HIDDEN_DIM: int = at_least(1, 768)

    def check(self) -> Iterator[str]:
        yield from super().check()
        if self.HIDDEN_DIM % self.NUM_HEADS:
            yield f"NUM_HEADS: {self.NUM_HEADS} heads do not divide HIDDEN_DIM {self.HIDDEN_DIM}."


@dataclass
class ScaleOptions:
    # Factor on queries times keys; false: 1 / sqrt(width of a head). With a number the fused
    # attention kernel cannot be used.
    QK_SCALE: bool | float | None = False

    def check(self) -> Iterator[str]:
        if self.QK_SCALE is True:
            yield "QK_SCALE: expected a number, or false for the usual scale; got true."


@dataclass
class VisionTransformerOptions(BlockOptions, ScaleOptions):
    # What makes a token of a patch: patches (a linear map), conv (overlapping 3 x 3 convolutions,
    # which learn from fewer images) or mlp (a small network on each patch, which sees nothing of
    # its neighbours: for masks). conv and mlp need a PATCH_SIZE of 2, 4, 8, 16 ...
    STEM: str = choice("patches", "conv", "mlp")
    # Width inside each block's MLP.
    MLP_DIM: int = at_least(1, 3072)
    # false: there is no class token, and the final feature is the mean of the patches.
    USE_CLASS_TOKEN: bool = True
    # Position embeddings are fixed sines and cosines, as in MAE and I-JEPA; false: learned.
    SINE_POSITIONS: bool = False
    # Rotary positions instead of embeddings: none, centres (as in DINOv3), corners (as in the paper
    # of CAPI) or corners_mixed (as in its code); see sslengine/models/trunks/rotations.py.
    ROPE: str = choice("none", "centres", "corners", "corners_mixed")
    # With ROPE centres: the longest period of rotations, in halves of the image's side.
    ROPE_BASE: float = above(1, 100.0)
    # With ROPE centres, in training: places are moved by up to this, in halves of the image's side.
    ROPE_SHIFT: float = at_least(0, 0.0)
    # Then each direction is multiplied by a number from 1 / ROPE_JITTER to ROPE_JITTER; 0: by none.
    ROPE_JITTER: float = at_least(1, 0.0, also=0)
    # Then both are multiplied by a number from 1 / ROPE_RESCALE to ROPE_RESCALE; 0: by none.
    ROPE_RESCALE: float = at_least(1, 0.0, also=0)
    # LayerNorm; or RMSNorm as in CAPI: without weights at the end.
    NORM: str = choice("LayerNorm", "RMSNorm")
    # Biases in blocks, but for those of QKV_BIAS.
    PROJ_BIAS: bool = True
    # All blocks have the rate of the last, as in DINOv2.
    DROP_PATH_UNIFORM: bool = False
    # Register tokens: learned tokens without a position, between the class token and the patches.
    REGISTER_TOKENS: int = at_least(0, 0)
    # Initial learned factor on the output of attention and MLPs (LayerScale); 0: there is none.
    LAYER_SCALE: float = 0.0
    # MLPs with a gate: SiLU(first half) * second half, each of width MLP_DIM.
    SWIGLU: bool = False
    # Initial weights: timm, rescaled (as in I-JEPA: a later block adds less) or xavier (as in
    # CAPI); see sslengine/models/trunks/vision_transformer.py.
    INIT: str = choice("timm", "rescaled", "xavier")
    # Recompute each block in the backward pass instead of keeping its activations.
    CHECKPOINT_BLOCK: bool = False

    def check(self) -> Iterator[str]:
        yield from BlockOptions.check(self)
        yield from ScaleOptions.check(self)
        if self.STEM != "patches" and self.PATCH_SIZE & (self.PATCH_SIZE - 1):
            yield f"PATCH_SIZE: STEM {self.STEM} needs a power of 2, got {self.PATCH_SIZE}."
        yield from self._rope_problems()
        if self.SINE_POSITIONS and self.HIDDEN_DIM % 4:
            yield f"HIDDEN_DIM: SINE_POSITIONS need a multiple of 4, got {self.HIDDEN_DIM}."
        if self.DROP_PATH_UNIFORM and not self.DROP_PATH_RATE:
            yield "DROP_PATH_UNIFORM: has an effect only with a DROP_PATH_RATE above 0."

    def _rope_problems(self) -> Iterator[str]:
        if self.ROPE != "none":
            if self.SINE_POSITIONS:
                yield "SINE_POSITIONS: ROPE has other positions; set one of them."
            if self.HIDDEN_DIM % (4 * self.NUM_HEADS):
                width = f"{self.HIDDEN_DIM} / {self.NUM_HEADS}"
                yield f"NUM_HEADS: ROPE needs heads whose width 4 divides, got {width}."
        defaults = VisionTransformerOptions
        for key in ("ROPE_BASE", "ROPE_SHIFT", "ROPE_JITTER", "ROPE_RESCALE"):
            if getattr(self, key) != getattr(defaults, key) and self.ROPE != "centres":
                yield f"{key}: has an effect only with ROPE: centres."


@dataclass
class BeitOptions(BlockOptions, ScaleOptions):
    # Width inside each block's MLP, divided by that of a token.
    MLP_RATIO: float = 4.0
    # A bias on queries and values; keys have none.
    QKV_BIAS: bool = False
    # An embedding of each patch's position is added to its token.
    USE_ABS_POS_EMB: bool = True
    # Each block has a bias on attention that depends on relative position.
    USE_REL_POS_BIAS: bool = False
    # All blocks share one such bias.
    USE_SHARED_REL_POS_BIAS: bool = False
    # true: the patches are averaged, then normed; false: all tokens are normed.
    USE_MEAN_POOLING: bool = True
    # With USE_MEAN_POOLING: the patches are normed, then averaged. So methods that train patches
    # train the norm of the feature that is judged.
    NORM_BEFORE_POOLING: bool = False
    # Initial factor on each channel of every residual branch (LayerScale); false: no LayerScale.
    INIT_VALUES: bool | float | None = at_least(0, False)

    def check(self) -> Iterator[str]:
        yield from BlockOptions.check(self)
        yield from ScaleOptions.check(self)
        if self.INIT_VALUES is True:
            yield "INIT_VALUES: expected a number, or false for no LayerScale; got true."
        if self.NORM_BEFORE_POOLING and not self.USE_MEAN_POOLING:
            yield "NORM_BEFORE_POOLING: has an effect only with USE_MEAN_POOLING: true."


@dataclass
class XcitOptions(BlockOptions):
    # The side of a patch in pixels, 8 or 16: patches are embedded by convolutions of stride 2.
    PATCH_SIZE: int = choice(16, 8)
    HIDDEN_DIM: int = at_least(1, 384)
    # Layers after those in which the class token attends to the patches.
    NUM_CLASS_LAYERS: int = at_least(1, 2)
    NUM_HEADS: int = at_least(1, 8)
    # Width inside each block's MLP, divided by that of a token.
    MLP_RATIO: float = 4.0
    # Stochastic depth, the same in all layers.
    DROP_PATH_RATE: float = at_least(0, 0.05, below=1)
    # Initial factor on every residual branch (LayerScale).
    ETA: float = 1.0
    # Class layers normalise the patches too, not the class token alone.
    TOKENS_NORM: bool = True
    QKV_BIAS: bool = True
    # Recompute the layers before the class layers in the backward pass, one at a time.
    CHECKPOINT_XCA_BLOCK: bool = False
    # Recompute the class layers in the backward pass.
    CHECKPOINT_ATTN_BLOCK: bool = False


@dataclass
class SwinTransformerOptions(PatchOptions, ScaleOptions):
    PATCH_SIZE: int = at_least(1, 4)
    # Width of the first stage; every further stage is twice as wide.
    EMBED_DIM: int = at_least(1, 96)
    # Blocks of each stage.
    DEPTHS: list[int] = at_least(1, [2, 2, 6, 2])
    # Attention heads of each stage.
    NUM_HEADS: list[int] = at_least(1, [3, 6, 12, 24])
    # The side of a window, in patches.
    WINDOW_SIZE: int = at_least(1, 7)
    # Width inside each block's MLP, divided by that of a token.
    MLP_RATIO: float = 4.0
    DROP_PATH_RATE: float = at_least(0, 0.1, below=1)
    QKV_BIAS: bool = True

    def check(self) -> Iterator[str]:
        yield from PatchOptions.check(self)
        yield from ScaleOptions.check(self)
        yield from empty_lists(self, "DEPTHS")
        if len(self.DEPTHS) != len(self.NUM_HEADS):
            yield f"NUM_HEADS: expected {len(self.DEPTHS)} numbers, one for each of DEPTHS."
        for stage, heads in enumerate(self.NUM_HEADS):
            if self.EMBED_DIM * 2**stage % heads:
                yield (
                    f"NUM_HEADS.{stage}: {heads} heads do not divide the stage's width "
                    f"{self.EMBED_DIM * 2**stage}; Swin-B (EMBED_DIM 128) has [4, 8, 16, 32]."
                )


# ---- trunks whose sections are not fields of TrunkOptions

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
        "depths", "widths", "group_widths", "bottleneck_multipliers", "strides",
    )  # fmt: skip
    OUTSIDE_BLOCKS: ClassVar[tuple[str, ...]] = (
        "stem_type", "stem_width", "bn_epsilon", "bn_momentum",
    )  # fmt: skip
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
