"""timm's BEiT, with timm's parameter names, which are those of the authors and VISSL.

`i` is the index of a block, from 0; `n` is a number of last blocks.

    blkCLS{i}, lastCLS, concatCLS{n}    the class token after the final norm
    lastPATCH                           the patches after the final norm, N x L x D
    lastPOOL                            the mean of these patches

The final feature is lastCLS. With USE_MEAN_POOLING it is lastPOOL, the norm is then applied to the
mean alone, and tokens are not normed; unless NORM_BEFORE_POOLING.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import torch
from timm.models.beit import Beit as TimmBeit
from torch import Tensor

from sslengine.errors import ConfigError
from sslengine.models.trunks.library import Design, Feature
from sslengine.models.trunks.options import BeitOptions
from sslengine.models.trunks.patches import (
    PatchTrunk,
    block_design,
    drop_rates,
    set_attention_scale,
)
from sslengine.registry import register_trunk


@register_trunk("beit", options=BeitOptions)
class Beit(PatchTrunk, TimmBeit):  # type: ignore[misc] # Trunk's forward
    section = "config.MODEL.TRUNK.BEIT"
    block_names = r"blocks\.\d+"
    vissl_constants = r"(^|\.)relative_position_index$"

    def __init__(self, options: BeitOptions, in_chans: int = 3) -> None:
        design = _design(options)
        norm_of_mean = options.USE_MEAN_POOLING and not options.NORM_BEFORE_POOLING
        others = ("init_values", "global_pool", "use_fc_norm")
        super().__init__(
            in_chans=in_chans,
            num_classes=0,
            global_pool="avg" if norm_of_mean else "",
            init_values=options.INIT_VALUES or None,
            **{name: each for name, each in design.arguments.items() if name not in others},
            **drop_rates(options, pos_drop_rate=options.DROPOUT_RATE),
        )
        self.designs = {"timm": design}
        self.patch_size = options.PATCH_SIZE
        self.set_features(dict(_table(options.NUM_LAYERS, options.USE_MEAN_POOLING)))
        for block in self.blocks:
            mlp, attention = cast("Any", block.mlp), cast("Any", block.attn)
            mlp.drop1.p = 0.0  # BEiT has dropout after the second layer only
            # Concatenated with the zero bias of the keys, biases would be float32 where a sharded
            # model has bfloat16 weights.
            attention.qkv_bias_separate = True
        if self.rel_pos_bias is not None:
            index = cast("Tensor", self.rel_pos_bias.relative_position_index)
            # Not saved, as in newer versions of timm.
            self.rel_pos_bias.register_buffer("relative_position_index", index, persistent=False)
        if options.QK_SCALE:
            set_attention_scale((block.attn for block in self.blocks), options.QK_SCALE)

    def features(self, x: Tensor, wanted: Collection[str], **extra: Tensor) -> dict[str, Tensor]:
        if self.grid(x) != self.patch_embed.grid_size:
            raise ConfigError(
                f"{self.section}.IMAGE_SIZE: it is {self.patch_embed.img_size[0]}, but "
                f"images are {x.shape[-2]} x {x.shape[-1]}; resize or crop them in DATA."
            )
        return super().features(x, wanted, **extra)


def _design(options: BeitOptions) -> Design:
    arguments = {
        **block_design(options),
        "mlp_ratio": options.MLP_RATIO,
        "init_values": options.INIT_VALUES or 0.0,  # null would be the default of timm
        "use_abs_pos_emb": options.USE_ABS_POS_EMB,
        "use_rel_pos_bias": options.USE_REL_POS_BIAS,
        "use_shared_rel_pos_bias": options.USE_SHARED_REL_POS_BIAS,
        "global_pool": "avg" if options.USE_MEAN_POOLING else "token",
    }
    if options.NORM_BEFORE_POOLING:
        arguments["use_fc_norm"] = False  # newer versions of timm have it
    return Design("beit_base_patch16_224", arguments)


def _class_tokens(trunk: Beit, outputs: Sequence[Tensor], x: Tensor) -> Tensor:
    return torch.cat([trunk.norm(tokens[:, 0]) for tokens in outputs], dim=-1)


def _patches(trunk: Beit, outputs: Sequence[Tensor], x: Tensor) -> Tensor:
    patches: Tensor = trunk.norm(outputs[0][:, 1:])
    return patches


def _pooled(trunk: Beit, outputs: Sequence[Tensor], x: Tensor) -> Tensor:
    # One of the two norms is the identity.
    pooled: Tensor = trunk.fc_norm(_patches(trunk, outputs, x).mean(1))
    return pooled


def _table(depth: int, pooled: bool) -> Iterator[tuple[str, Feature]]:
    """Yield every feature; the final one is last."""
    blocks = tuple(f"blocks.{index}" for index in range(depth))
    for index, block in enumerate(blocks):
        yield f"blkCLS{index}", Feature((block,), _class_tokens)
    for count in range(1, depth + 1):
        yield f"concatCLS{count}", Feature(blocks[-count:], _class_tokens)
    yield "lastPATCH", Feature(blocks[-1:], _patches)
    last = ("lastCLS", _class_tokens), ("lastPOOL", _pooled)
    for name, read in last if pooled else reversed(last):
        yield name, Feature(blocks[-1:], read)
