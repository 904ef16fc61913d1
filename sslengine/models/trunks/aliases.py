"""VISSL's trunks that are timm's networks: what timm calls them, and what VISSL calls their parts.

convnext
    stem        after the first convolution and norm
    stage1 .. stageN    the stages
    flatten     averaged over space and normed, N x C: the final feature; lastCLS is the same
swin_transformer    for images of any multiple of a patch: a map is padded to whole windows
    stage1 .. stageN    the stages, N x C x H x W
    lastMAP     the last stage normed, N x C x H x W
    flatten     the same averaged, N x C: the final feature; lastCLS is the same
xcit    for images of any size
    lastMAP     the patches as a map, N x D x H x W
    lastCLS     the class token: the final feature
"""

from __future__ import annotations

from typing import Any

import timm
from timm.models.swin_transformer import WindowAttention
from torch import Tensor, nn

from sslengine.models.trunks.library import Design, Feature, LibraryTrunk, adopt, named
from sslengine.models.trunks.options import ConvNextOptions, SwinTransformerOptions, XcitOptions
from sslengine.models.trunks.patches import (
    PatchTrunk,
    block_design,
    drop_rates,
    image_design,
    set_attention_scale,
)
from sslengine.registry import register_trunk


def _make(design: Design, in_chans: int, **rates: Any) -> Any:
    return timm.create_model(
        design.name, num_classes=0, in_chans=in_chans, **design.arguments, **rates
    )


class ConvNext(LibraryTrunk):
    section = "config.MODEL.TRUNK.CONVNEXT"
    block_names = r"stages\.\d+\.blocks\.\d+"
    vissl_names = (
        (r"^stem\.", "downsample_layers.0."),
        (r"^stages\.(\d+)\.downsample\.", r"downsample_layers.\1."),
        (r"^stages\.(\d+)\.blocks\.", r"stages.\1."),
        (r"\.conv_dw\.", ".dwconv."),
        (r"\.mlp\.fc(\d)\.", r".pwconv\1."),
        (r"^head\.norm\.", "norm."),
    )


@register_trunk("convnext", options=ConvNextOptions)
def make_convnext(options: ConvNextOptions, in_chans: int = 3) -> ConvNext:
    design = Design("convnext_tiny", {"depths": options.DEPTH, "dims": options.DIMS})
    network = _make(design, in_chans, drop_path_rate=options.DROP_PATH_RATE)
    stages = {f"stage{i + 1}": f"stages.{i}" for i in range(len(options.DEPTH))}
    trunk = adopt(network, ConvNext, named(stem="stem", **stages, lastCLS="head", flatten="head"))
    trunk.designs = {"timm": design}
    return trunk


class SwinTransformer(PatchTrunk):
    section = "config.MODEL.TRUNK.SWIN_TRANSFORMER"
    vissl_constants = r"\.(relative_position_index|attn_mask)$"
    # VISSL's downsampling is at the end of a stage, timm's at the start of the next.
    vissl_names = (
        (r"^layers\.(\d+)\.downsample", lambda match: f"layers.{int(match[1]) - 1}.downsample"),
    )
    block_names = r"layers\.\d+\.blocks\.\d+"


@register_trunk("swin_transformer", "swin_transformer_official", options=SwinTransformerOptions)
def make_swin_transformer(options: SwinTransformerOptions, in_chans: int = 3) -> SwinTransformer:
    design = Design(
        "swin_tiny_patch4_window7_224",
        {
            **image_design(options),
            "embed_dim": options.EMBED_DIM,
            "depths": options.DEPTHS,
            "num_heads": options.NUM_HEADS,
            "window_size": options.WINDOW_SIZE,
            "mlp_ratio": options.MLP_RATIO,
            "strict_img_size": False,
        },
    )
    network = _make(design, in_chans, **drop_rates(options))
    # Dropout of the embeddings, in the place of the downsampling that the first stage lacks.
    network.layers[0].downsample = nn.Dropout(options.DROPOUT_RATE)
    if options.QK_SCALE:
        attentions = (each for each in network.modules() if isinstance(each, WindowAttention))
        set_attention_scale(attentions, options.QK_SCALE)
    layers = [f"layers.{index}" for index in range(len(options.DEPTHS))]
    # The outputs of timm's stages are N x H x W x C.
    maps = {f"stage{number}": name for number, name in enumerate(layers, start=1)}
    final = Feature(("norm",), lambda trunk, given, x: given[0].mean((1, 2)))
    table = {
        name: Feature((layer,), lambda trunk, given, x: given[0].permute(0, 3, 1, 2))
        for name, layer in {**maps, "lastMAP": "norm"}.items()
    }
    trunk = adopt(network, SwinTransformer, {**table, "lastCLS": final, "flatten": final})
    trunk.patch_size, trunk.designs = options.PATCH_SIZE, {"timm": design}
    return trunk


class Xcit(LibraryTrunk):
    section = "config.MODEL.TRUNK.XCIT"
    block_names = r"(cls_attn_)?blocks\.\d+"
    vissl_names = (
        (r"^pos_embed\.", "pos_embeder."),
        (r"^(cls_attn_blocks\.\d+\.attn)\.[qkv]\.", r"\1.qkv."),
    )
    patch_size: int

    def make_map(self, tokens: Tensor, x: Tensor) -> Tensor:
        # Each convolution of stride 2 rounds the sides up.
        grid = (-(-side // self.patch_size) for side in x.shape[-2:])
        return tokens[:, 1:].mT.reshape(len(tokens), -1, *grid)


@register_trunk("xcit", "xcit_fsdp", options=XcitOptions)
def make_xcit(options: XcitOptions, in_chans: int = 3) -> Xcit:
    design = Design(
        "xcit_small_12_p16_224",
        {
            **block_design(options),
            "mlp_ratio": options.MLP_RATIO,
            "cls_attn_layers": options.NUM_CLASS_LAYERS,
            "eta": options.ETA,
            "tokens_norm": options.TOKENS_NORM,
        },
    )
    rates = drop_rates(options, pos_drop_rate=options.DROPOUT_RATE)
    table = {
        "lastMAP": Feature(("norm",), lambda trunk, given, x: trunk.make_map(given[0], x)),
        "lastCLS": Feature(("norm",), lambda trunk, given, x: given[0][:, 0]),
    }
    trunk = adopt(_make(design, in_chans, **rates), Xcit, table)
    trunk.patch_size, trunk.designs = options.PATCH_SIZE, {"timm": design}
    layers = {r"blocks\.\d+": options.CHECKPOINT_XCA_BLOCK,
              r"cls_attn_blocks\.\d+": options.CHECKPOINT_ATTN_BLOCK}  # fmt: skip
    if chosen := "|".join(names for names, asked in layers.items() if asked):
        trunk.checkpoint_activations(chosen)
    return trunk
