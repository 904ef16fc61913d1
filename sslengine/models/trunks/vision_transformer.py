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

Extra inputs: `mask`, `patches_at` and `shown` of tokens.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from timm.layers.mlp import SwiGLUPacked
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn

from sslengine.models.trunks.library import Design, Feature
from sslengine.models.trunks.options import VisionTransformerOptions
from sslengine.models.trunks.patches import (
    PatchTrunk,
    block_design,
    drop_rates,
    fix_positions,
    mlp_ratio,
    resampled,
    set_attention_scale,
    set_drop_path,
)
from sslengine.models.trunks.rotations import CentreRotations, CornerRotations, RotaryBlock
from sslengine.models.trunks.tokens import PATCHES_AT, SHOWN, add_shown, tokens_of
from sslengine.registry import register_trunk

NARROWEST_STEM = 16  # channels


@register_trunk("vision_transformer", "vision_transformer_fsdp", options=VisionTransformerOptions)
class VisionTransformer(PatchTrunk, TimmVisionTransformer):  # type: ignore[misc] # Trunk's forward
    section = "config.MODEL.TRUNK.VISION_TRANSFORMERS"
    extra_inputs = (PATCHES_AT,)
    block_names = r"blocks\.\d+"

    def __init__(self, options: VisionTransformerOptions, in_chans: int = 3) -> None:
        design = _design(options)
        super().__init__(
            in_chans=in_chans,
            num_classes=0,
            **design.arguments,
            **drop_rates(options, pos_drop_rate=options.DROPOUT_RATE),
            **_more_arguments(options),
        )
        self.designs = {"timm": _other_than_timm(options) or design}
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
            self.checkpoint_activations()

    def final_feature(self, x: Tensor) -> Tensor:
        if self.rotations is None:
            return self.forward_features(x)  # type: ignore[no-any-return]
        patches = self.patch_embed(x)  # N x rows x columns x D
        tokens = self.patch_drop(self._pos_embed(patches))
        rotation = self.rotations.rotate_tokens(
            patches.shape[1:3], self.extra.get(SHOWN), self.num_prefix_tokens
        )
        for block in self.blocks:
            tokens = block(tokens, rotation)
        return self.norm(tokens)  # type: ignore[no-any-return]

    def _pos_embed(self, x: Tensor) -> Tensor:
        """x: N x rows x columns x D."""
        patches = x.flatten(1, 2)
        if self.pos_embed is None:
            return self.pos_drop(self._add_prefix(patches))  # type: ignore[no-any-return]
        own = 0 if self.no_embed_class else self.num_prefix_tokens
        grid = (x.shape[1], x.shape[2])
        positions = resampled(self.pos_embed, self.patch_embed.grid_size, grid, own)
        if self.no_embed_class:
            tokens = self._add_prefix(patches + positions)
        else:
            tokens = self._add_prefix(patches) + positions
        return self.pos_drop(tokens)  # type: ignore[no-any-return]

    def _add_prefix(self, patches: Tensor) -> Tensor:
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


_DESIGNS = {
    192: "vit_tiny_patch16_224",
    384: "vit_small_patch16_224",
    1024: "vit_large_patch16_224",
}


def _design(options: VisionTransformerOptions) -> Design:
    arguments = {
        **block_design(options),
        "mlp_ratio": mlp_ratio(options),
        "class_token": options.USE_CLASS_TOKEN,
        "global_pool": "token" if options.USE_CLASS_TOKEN else "avg",
        "fc_norm": False,  # the final norm is applied to all tokens, before pooling
        "dynamic_img_size": True,
    }
    if options.REGISTER_TOKENS:  # which have no position
        arguments |= {"reg_tokens": options.REGISTER_TOKENS, "no_embed_class": True}
    if not options.PROJ_BIAS:
        arguments["proj_bias"] = False
    if options.LAYER_SCALE:
        arguments["init_values"] = options.LAYER_SCALE
    return Design(_DESIGNS.get(options.HIDDEN_DIM, "vit_base_patch16_224"), arguments)


def _other_than_timm(options: VisionTransformerOptions) -> str:
    """Return the option that timm's vision transformers do not have; "" if there is none."""
    usual = {"STEM": "patches", "ROPE": "none", "NORM": "LayerNorm", "SWIGLU": False}
    return next((f"{key} {getattr(options, key)}" for key, value in usual.items()
                 if getattr(options, key) != value), "")  # fmt: skip


def _more_arguments(options: VisionTransformerOptions) -> dict[str, Any]:
    """Return arguments that are classes."""
    more: dict[str, Any] = {}
    if options.SWIGLU:
        more |= {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU}
    if options.STEM != "patches":
        more["embed_layer"] = partial(StemEmbed, stem=options.STEM)
    if options.ROPE != "none":
        more |= {"pos_embed": "none", "block_fn": RotaryBlock}
    if options.NORM == "RMSNorm":
        more["norm_layer"] = partial(nn.RMSNorm, eps=1e-5)
    return more


def _read(trunk: VisionTransformer, outputs: Sequence[Tensor], x: Tensor, *, kind: str) -> Tensor:
    found = [_pick(trunk, trunk.norm(tokens), x, kind) for tokens in outputs]
    return found[0] if len(found) == 1 else torch.cat(found, dim=-1)


def _pick(trunk: VisionTransformer, tokens: Tensor, x: Tensor, kind: str) -> Tensor:
    if kind == "MAP":
        return trunk.make_map(tokens[:, trunk.num_prefix_tokens :], x)
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


# ---- what makes a token of a patch


class StemEmbed(PatchEmbed):
    """timm's patch embedding with several layers in place of one.

    conv    3 x 3 convolutions with stride 2, batch norm and ReLU, then 1 x 1: "Early Convolutions
            Help Transformers See Better", arXiv:2106.14881. Patches overlap, so what a mask hides
            can be seen at the border of its neighbours.
    mlp     convolutions with kernel = stride, batch norm and GELU: a small network on each patch
            by itself, hMLP of arXiv:2203.09795. Nothing is seen of hidden patches.
    """

    def __init__(self, *, stem: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        sizes = (arguments[name] for name in ("patch_size", "in_chans", "embed_dim"))
        layers = (_conv if stem == "conv" else _mlp)(*sizes)
        self.proj: Any = nn.Sequential(*layers)


def _conv(patch_size: int, channels: int, width: int) -> Iterator[nn.Module]:
    """Make each step as wide as its share of the way: the last has the width of a token."""
    steps = patch_size.bit_length() - 1
    for step in range(1, steps + 1):
        out = max(NARROWEST_STEM, width >> (steps - step))
        yield nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False)
        yield nn.BatchNorm2d(out)
        yield nn.ReLU(inplace=True)
        channels = out
    yield nn.Conv2d(channels, width, 1)


def _mlp(patch_size: int, channels: int, width: int) -> Iterator[nn.Module]:
    """Join 4 x 4 pixels first, as in the paper, then 2 x 2 at a time."""
    first = min(4, patch_size)
    sides = [first] + [2] * ((patch_size // first).bit_length() - 1)
    for number, side in enumerate(sides, start=1):
        out = width if number == len(sides) else max(NARROWEST_STEM, width // 4)
        yield nn.Conv2d(channels, out, side, stride=side, bias=False)
        yield nn.BatchNorm2d(out)
        yield nn.GELU()
        channels = out
    yield nn.Conv2d(channels, width, 1)


# ---- initial weights


@torch.no_grad()
def set_initial_weights(trunk: Any, kind: str) -> None:
    """Replace timm's initial weights by those of other authors.

    timm        maps: normal, 0.02, cut at two; the map of patches as torch makes convolutions
    rescaled    I-JEPA's: the map of patches too; a later block adds less (`rescale_blocks`)
    xavier      CAPI's: uniform within sqrt(6 / (inputs + outputs)), of queries, keys and values
                separately; registers: normal, 0.02, so that no two begin equal
    """
    if kind == "rescaled":
        for each in _convolutions(trunk):
            nn.init.trunc_normal_(each.weight, std=0.02)
            if each.bias is not None:
                nn.init.zeros_(each.bias)
        rescale_blocks(trunk.blocks)
    elif kind == "xavier":
        for each in _convolutions(trunk):
            nn.init.xavier_uniform_(each.weight.flatten(1))
        for name, each in trunk.blocks.named_modules():
            if isinstance(each, nn.Linear):
                _xavier(each, maps=3 if name.endswith("qkv") else 1)
        if trunk.reg_token is not None:
            nn.init.normal_(trunk.reg_token, std=0.02)


@torch.no_grad()
def rescale_blocks(blocks: Iterable[Any]) -> None:
    """Divide the last maps of attention and MLP of block i, from 1, by sqrt(2 i), so that the sum
    over blocks stays small."""
    for number, block in enumerate(blocks, start=1):
        for each in (block.attn.proj, block.mlp.fc2):
            each.weight.div_(math.sqrt(2 * number))


def _convolutions(trunk: Any) -> list[nn.Conv2d]:
    return [each for each in trunk.patch_embed.modules() if isinstance(each, nn.Conv2d)]


def _xavier(linear: nn.Linear, maps: int) -> None:
    for each in linear.weight.chunk(maps):
        nn.init.xavier_uniform_(each)
