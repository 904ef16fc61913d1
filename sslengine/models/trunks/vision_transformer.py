"""timm's vision transformer, with timm's parameter names and VISSL's features.

The final norm is applied to every feature. `i` is the index of a block, from 0; `n` is a number of
last blocks.

    blkCLS{i}, lastCLS, concatCLS{n}        the class token
    lastBLK, concatBLK{n}                   all tokens, N x T x D
    lastPOOL, concatPOOL{n}                 the mean of the patches
    stridePOOL_{n}_{s}, stridePOOL_{n}      n such means, every s-th block from the last one back
    lastMAP                                 the patches as a map, N x D x H x W
    lastPATCH, lastREG                      patches and registers, see tokens.py

The final feature is lastCLS; without a class token, lastPOOL.

Extra inputs: `mask` and `patches_at` of tokens.py, `shown` of shown.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from timm.layers.mlp import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn

from sslengine.models.options import VisionTransformerOptions
from sslengine.models.trunks.initial import set_initial_weights
from sslengine.models.trunks.library import Feature
from sslengine.models.trunks.patches import (
    PatchTrunk,
    block_arguments,
    fix_positions,
    image_arguments,
    mlp_ratio,
    set_attention_scale,
    set_drop_path,
)
from sslengine.models.trunks.resampled import resampled
from sslengine.models.trunks.rotary_blocks import RotaryBlock
from sslengine.models.trunks.rotations import CentreRotations, CornerRotations
from sslengine.models.trunks.shown import SHOWN, add_shown
from sslengine.models.trunks.stem import StemEmbed
from sslengine.models.trunks.tokens import PATCHES_AT, tokens_of
from sslengine.registry import register_trunk


@register_trunk("vision_transformer", "vision_transformer_fsdp", options=VisionTransformerOptions)
class VisionTransformer(PatchTrunk, TimmVisionTransformer):  # type: ignore[misc] # Trunk's forward
    section = "config.MODEL.TRUNK.VISION_TRANSFORMERS"
    extra_inputs = (PATCHES_AT,)
    block_names = r"blocks\.\d+"

    def __init__(self, options: VisionTransformerOptions, in_chans: int = 3) -> None:
        super().__init__(
            in_chans=in_chans,
            global_pool="token" if options.USE_CLASS_TOKEN else "avg",
            class_token=options.USE_CLASS_TOKEN,
            fc_norm=False,  # the final norm is applied to all tokens, before pooling
            mlp_ratio=mlp_ratio(options),
            dynamic_img_size=True,
            reg_tokens=options.REGISTER_TOKENS,
            no_embed_class=options.REGISTER_TOKENS > 0,  # registers have no position
            init_values=options.LAYER_SCALE or None,
            proj_bias=options.PROJ_BIAS,
            **image_arguments(options),
            **block_arguments(options),
            **_mlp_arguments(options),
            **_stem_arguments(options),
            **_position_arguments(options),
            **_norm_arguments(options),
        )
        add_shown(self)
        self.rotations = _rotations(options)
        self.set_features(dict(_table(options)))
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)
        set_initial_weights(self, options.INIT)
        if options.NORM == "RMSNorm":
            self.norm = nn.RMSNorm(options.HIDDEN_DIM, eps=1e-5, elementwise_affine=False)
        if options.SINE_POSITIONS:
            fix_positions(self, options.IMAGE_SIZE // options.PATCH_SIZE)
        if options.QK_SCALE:
            set_attention_scale((block.attn for block in self.blocks), options.QK_SCALE)
        if options.DROP_PATH_UNIFORM and options.DROP_PATH_RATE:
            set_drop_path(self, options.DROP_PATH_RATE)
        if options.CHECKPOINT_BLOCK:
            self.checkpoint_activations(options.NUM_LAYERS)

    def final_feature(self, x: Tensor) -> Tensor:
        if self.rotations is None:
            return self.forward_features(x)  # type: ignore[no-any-return]
        patches = self.patch_embed(x)  # N x rows x columns x D
        tokens = self.patch_drop(self._pos_embed(patches))
        rotation = self.rotations.of_tokens(
            patches.shape[1:3], self.extra.get(SHOWN), self.num_prefix_tokens
        )
        for block in self.blocks:
            tokens = block(tokens, rotation)
        return self.norm(tokens)  # type: ignore[no-any-return]

    def _pos_embed(self, x: Tensor) -> Tensor:
        """x: N x rows x columns x D."""
        patches = x.flatten(1, 2)
        if self.pos_embed is None:
            return self.pos_drop(self._with_prefix(patches))  # type: ignore[no-any-return]
        own = 0 if self.no_embed_class else self.num_prefix_tokens
        grid = (x.shape[1], x.shape[2])
        positions = resampled(self.pos_embed, self.patch_embed.grid_size, grid, own)
        if self.no_embed_class:
            tokens = self._with_prefix(patches + positions)
        else:
            tokens = self._with_prefix(patches) + positions
        return self.pos_drop(tokens)  # type: ignore[no-any-return]

    def _with_prefix(self, patches: Tensor) -> Tensor:
        before = [each for each in (self.cls_token, self.reg_token) if each is not None]
        if not before:
            return patches
        count = patches.shape[0]  # torch.export takes len(patches) for a constant
        return torch.cat([*(each.expand(count, -1, -1) for each in before), patches], 1)


def _rotations(options: VisionTransformerOptions) -> CentreRotations | CornerRotations | None:
    width = options.HIDDEN_DIM // options.NUM_HEADS
    match options.ROPE:
        case "centres":
            return CentreRotations(width, options)
        case "corners" | "corners_mixed":
            made = CornerRotations(width, mixed=options.ROPE == "corners_mixed")
            return made.to(torch.get_default_dtype())
    return None


def _position_arguments(options: VisionTransformerOptions) -> dict[str, Any]:
    return {} if options.ROPE == "none" else {"pos_embed": "none", "block_fn": RotaryBlock}


def _norm_arguments(options: VisionTransformerOptions) -> dict[str, Any]:
    return {"norm_layer": partial(nn.RMSNorm, eps=1e-5)} if options.NORM == "RMSNorm" else {}


def _stem_arguments(options: VisionTransformerOptions) -> dict[str, Any]:
    if options.STEM == "patches":
        return {}
    return {"embed_layer": partial(StemEmbed, stem=options.STEM)}


def _mlp_arguments(options: VisionTransformerOptions) -> dict[str, Any]:
    return {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU} if options.SWIGLU else {}


def _read(trunk: VisionTransformer, outputs: Sequence[Tensor], x: Tensor, *, kind: str) -> Tensor:
    found = [_of(trunk, trunk.norm(tokens), x, kind) for tokens in outputs]
    return found[0] if len(found) == 1 else torch.cat(found, dim=-1)


def _of(trunk: VisionTransformer, tokens: Tensor, x: Tensor, kind: str) -> Tensor:
    if kind == "MAP":
        return trunk.as_map(tokens[:, trunk.num_prefix_tokens :], x)
    return tokens_of(trunk, tokens, kind)


def _table(options: VisionTransformerOptions) -> Iterator[tuple[str, Feature]]:
    """Yield every feature; the final one is last."""
    depth, class_token = options.NUM_LAYERS, options.USE_CLASS_TOKEN

    def read(kind: str, blocks: Sequence[int]) -> Feature:
        return Feature(tuple(f"blocks.{block}" for block in blocks), partial(_read, kind=kind))

    blocks = range(depth)
    for index in blocks if class_token else ():
        yield f"blkCLS{index}", read("CLS", [index])
    for kind in ("CLS", "BLK", "POOL") if class_token else ("BLK", "POOL"):
        for count in range(1, depth + 1):
            yield f"concat{kind}{count}", read(kind, blocks[-count:])
    for count in range(1, depth + 1):
        for stride in range(1, depth + 1):
            strided = blocks[::-stride][:count]
            if len(strided) == count:
                yield f"stridePOOL_{count}_{stride}", read("POOL", strided)
                if stride == math.ceil(depth / count):
                    yield f"stridePOOL_{count}", read("POOL", strided)
    registers = ["REG"] if options.REGISTER_TOKENS else []
    for kind in (*registers, "PATCH", "MAP", "BLK", "POOL", *(["CLS"] if class_token else [])):
        yield f"last{kind}", read(kind, blocks[-1:])
