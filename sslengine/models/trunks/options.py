"""`config.MODEL.TRUNK.*`: VISSL's keys of its trunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class XcitOptions:
    # The side of images.
    IMAGE_SIZE: int = at_least(1, 224)
    # The side of a patch in pixels, 8 or 16: patches are embedded by convolutions of stride 2.
    PATCH_SIZE: int = choice(16, 8)
    # Width of a token.
    HIDDEN_DIM: int = at_least(1, 384)
    # Layers of cross-covariance attention.
    NUM_LAYERS: int = at_least(1, 12)
    # Layers after those in which the class token attends to the patches.
    NUM_CLASS_LAYERS: int = at_least(1, 2)
    # Heads of each layer.
    NUM_HEADS: int = at_least(1, 8)
    # Width inside each block's MLP, divided by that of a token.
    MLP_RATIO: float = 4.0
    # Dropout on embeddings, and after attention and MLPs.
    DROPOUT_RATE: float = at_least(0, 0.0, below=1)
    # Dropout on the weights of attention.
    ATTENTION_DROPOUT_RATE: float = at_least(0, 0.0, below=1)
    # Stochastic depth, the same in all layers.
    DROP_PATH_RATE: float = at_least(0, 0.05, below=1)
    # Initial factor on every residual branch (LayerScale).
    ETA: float = 1.0
    # Class layers normalise the patches too, not the class token alone.
    TOKENS_NORM: bool = True
    # A bias on queries, keys and values.
    QKV_BIAS: bool = True
    # Recompute the layers before the class layers in the backward pass, one at a time.
    CHECKPOINT_XCA_BLOCK: bool = False
    # Recompute the class layers in the backward pass.
    CHECKPOINT_ATTN_BLOCK: bool = False


@dataclass
class SwinTransformerOptions:
    # The side for which windows are laid out; other sizes are padded to whole windows.
    IMAGE_SIZE: int = at_least(1, 224)
    # The side of a patch, in pixels.
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
    # Dropout on embeddings, and after attention and MLPs.
    DROPOUT_RATE: float = at_least(0, 0.0, below=1)
    # Dropout on the weights of attention.
    ATTENTION_DROPOUT_RATE: float = at_least(0, 0.0, below=1)
    # Stochastic depth of the last block; it grows linearly from 0.
    DROP_PATH_RATE: float = at_least(0, 0.1, below=1)
    # A bias on queries, keys and values.
    QKV_BIAS: bool = True
    # Factor on queries times keys; false: 1 / sqrt(width of a head). With a number the fused
    # attention kernel cannot be used.
    QK_SCALE: bool | float | None = above(0, False, also=False)

    def check(self) -> Iterator[str]:
        for stage, heads in enumerate(self.NUM_HEADS):
            width = self.EMBED_DIM * 2**stage
            if width % heads:
                yield (
                    f"NUM_HEADS.{stage}: {heads} heads do not divide the stage's width {width}; "
                    f"Swin-B (EMBED_DIM 128) has [4, 8, 16, 32]."
                )


@dataclass
class ConvNextOptions:
    # Blocks of each of the four stages.
    DEPTH: list[int] = at_least(1, [3, 3, 27, 3])
    # Width of each of the four stages.
    DIMS: list[int] = at_least(1, [96, 192, 384, 768])
    # Stochastic depth of the last block; it grows linearly from 0.
    DROP_PATH_RATE: float = at_least(0, 0.0, below=1)


@dataclass
class BeitOptions:
    # The side of images; no other is accepted, since relative positions depend on it.
    IMAGE_SIZE: int = at_least(1, 224)
    # The side of a patch, in pixels.
    PATCH_SIZE: int = at_least(1, 16)
    # Blocks.
    NUM_LAYERS: int = at_least(1, 12)
    # Attention heads of each block.
    NUM_HEADS: int = at_least(1, 12)
    # Width of a token.
    HIDDEN_DIM: int = at_least(1, 768)
    # Width inside each block's MLP, divided by that of a token.
    MLP_RATIO: float = 4.0
    # Dropout on embeddings, and after attention and MLPs.
    DROPOUT_RATE: float = at_least(0, 0.0, below=1)
    # Dropout on the weights of attention.
    ATTENTION_DROPOUT_RATE: float = at_least(0, 0.0, below=1)
    # Stochastic depth of the last block; it grows linearly from 0.
    DROP_PATH_RATE: float = at_least(0, 0.0, below=1)
    # A bias on queries and values; keys have none.
    QKV_BIAS: bool = False
    # Factor on queries times keys; false: 1 / sqrt(width of a head). With a number the fused
    # attention kernel cannot be used.
    QK_SCALE: bool | float | None = above(0, False, also=False)
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
    INIT_VALUES: bool | float | None = at_least(0, False, also=False)


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

    def given(self) -> dict[str, Any]:
        """Return the keys that are set, but `name`."""
        return {key: value for key, value in vars(self).items()
                if key != "name" and value not in (None, [])}  # fmt: skip

    def check(self) -> Iterator[str]:
        stages = (self.depths, self.widths, self.group_widths, self.bottleneck_multipliers,
                  self.strides)  # fmt: skip
        if len({len(each) for each in stages}) > 1:
            yield "depths: anynet requires one number per stage in each list."


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
    WIDTH_MULTIPLIER: float = above(0, 3)
    # Width of the network that mixes two kernels, as a share of the channels; 0: one kernel.
    SK_RATIO: float = at_least(0, 0.0625)

    def channels(self) -> int:
        return round(64 * self.WIDTH_MULTIPLIER)
