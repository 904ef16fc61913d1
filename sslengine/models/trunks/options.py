"""`config.MODEL.TRUNK.*`, with VISSL's keys, of the trunks that use timm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sslengine.config.ranges import at_least, choice, empty_lists


def division_problems(options: Any) -> Iterator[str]:
    """Yield problems of a width or an image that is not divisible."""
    heads, width = options.NUM_HEADS, options.HIDDEN_DIM
    if width % heads:
        yield f"NUM_HEADS: {heads} heads do not divide HIDDEN_DIM {width}."
    if options.IMAGE_SIZE % options.PATCH_SIZE:
        yield f"PATCH_SIZE: {options.PATCH_SIZE} does not divide IMAGE_SIZE {options.IMAGE_SIZE}."


def scale_problems(options: Any) -> Iterator[str]:
    """Yield the problem of a factor that is `true`, which no number explains."""
    if options.QK_SCALE is True:
        yield "QK_SCALE: expected a number, or false for the usual scale; got true."


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

    def check(self) -> Iterator[str]:
        if self.HIDDEN_DIM % self.NUM_HEADS:
            yield f"NUM_HEADS: {self.NUM_HEADS} heads do not divide HIDDEN_DIM {self.HIDDEN_DIM}."


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
    QK_SCALE: bool | float | None = False

    def check(self) -> Iterator[str]:
        yield from scale_problems(self)
        if self.IMAGE_SIZE % self.PATCH_SIZE:
            yield f"PATCH_SIZE: {self.PATCH_SIZE} does not divide IMAGE_SIZE {self.IMAGE_SIZE}."
        yield from empty_lists(self, "DEPTHS")
        if len(self.DEPTHS) != len(self.NUM_HEADS):
            yield f"NUM_HEADS: expected {len(self.DEPTHS)} numbers, one for each of DEPTHS."
        for stage, heads in enumerate(self.NUM_HEADS):
            if self.EMBED_DIM * 2**stage % heads:
                yield (
                    f"NUM_HEADS.{stage}: {heads} heads do not divide the stage's width "
                    f"{self.EMBED_DIM * 2**stage}; Swin-B (EMBED_DIM 128) has [4, 8, 16, 32]."
                )


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
    QK_SCALE: bool | float | None = False
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
        yield from scale_problems(self)
        if self.INIT_VALUES is True:
            yield "INIT_VALUES: expected a number, or false for no LayerScale; got true."
        if self.NORM_BEFORE_POOLING and not self.USE_MEAN_POOLING:
            yield "NORM_BEFORE_POOLING: has an effect only with USE_MEAN_POOLING: true."
        yield from division_problems(self)
