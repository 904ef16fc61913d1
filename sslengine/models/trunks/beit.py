"""timm's BEiT, with timm's parameter names, which are those of the authors and VISSL.

`i` counts blocks from 0; `n` counts the last blocks.

    blkCLS{i}, lastCLS, concatCLS{n}    the class token behind the final norm
    lastPOOL                            the patches averaged, then normed

The final feature is lastCLS; with USE_MEAN_POOLING lastPOOL, which is there only then, and class
tokens have no norm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, cast

import torch
from timm.models.beit import Beit as TimmBeit
from torch import Tensor

from sslengine.errors import ConfigError
from sslengine.models.trunks.options import BeitOptions
from sslengine.models.trunks.patches import patch_grid, set_attention_scale
from sslengine.models.trunks.steps import Step, StepTrunk
from sslengine.registry import register_trunk


@register_trunk("beit", options=BeitOptions)
class Beit(StepTrunk, TimmBeit):  # type: ignore[misc] # Trunk's forward
    block_names = r"blocks\.\d+"
    vissl_constants = r"(^|\.)relative_position_index$"

    def __init__(self, options: BeitOptions, in_chans: int = 3) -> None:
        super().__init__(in_chans=in_chans, **_timm_arguments(options))
        self.patch_size = options.PATCH_SIZE
        self._blocks_of = dict(_features(options.NUM_LAYERS, options.USE_MEAN_POOLING))
        self.feature_names = tuple(self._blocks_of)
        for block in self.blocks:
            mlp, attention = cast("Any", block.mlp), cast("Any", block.attn)
            mlp.drop1.p = 0.0  # BEiT drops behind the second layer alone
            # Joined with the zeros of the keys, biases would be float32 where a sharded model
            # has its weights in bfloat16.
            attention.qkv_bias_separate = True
        if self.rel_pos_bias is not None:
            index = cast("Tensor", self.rel_pos_bias.relative_position_index)
            # Not saved, as in newer timm.
            self.rel_pos_bias.register_buffer("relative_position_index", index, persistent=False)
        if options.QK_SCALE:
            set_attention_scale((block.attn for block in self.blocks), options.QK_SCALE)

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        self._check_size(x)
        shared = None if self.rel_pos_bias is None else self.rel_pos_bias()
        steps: list[Step] = [("", self._embed)]
        for index, block in enumerate(self.blocks):
            steps.append((str(index), partial(block, shared_rel_pos_bias=shared)))
        needed = {block for name in wanted for block in self._blocks_of[name]}
        tokens = self.run_steps(steps, x, needed)
        return {name: self._read(name, tokens) for name in wanted}

    def _read(self, name: str, tokens: dict[str, Tensor]) -> Tensor:
        found = [tokens[block] for block in self._blocks_of[name]]
        if name == "lastPOOL":
            pooled: Tensor = self.fc_norm(found[0][:, 1:].mean(1))
            return pooled
        return torch.cat([self.norm(each[:, 0]) for each in found], dim=-1)

    def _check_size(self, x: Tensor) -> None:
        grid = patch_grid(x, self.patch_size, "BEIT")
        if grid != self.patch_embed.grid_size:
            raise ConfigError(
                f"config.MODEL.TRUNK.BEIT.IMAGE_SIZE: it is {self.patch_embed.img_size[0]}, and "
                f"images are {x.shape[-2]} x {x.shape[-1]}; resize or crop them in DATA."
            )

    def _embed(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1)
        if self.pos_embed is not None:
            tokens = tokens + self.pos_embed
        embedded: Tensor = self.pos_drop(tokens)
        return embedded


def _features(depth: int, pooled: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every feature and the blocks that it is read from; the final feature comes last."""
    blocks = tuple(str(index) for index in range(depth))
    for block in blocks:
        yield f"blkCLS{block}", (block,)
    for count in range(1, depth + 1):
        yield f"concatCLS{count}", blocks[-count:]
    yield "lastCLS", blocks[-1:]
    if pooled:
        yield "lastPOOL", blocks[-1:]


def _timm_arguments(options: BeitOptions) -> dict[str, Any]:
    return {
        "img_size": options.IMAGE_SIZE,
        "patch_size": options.PATCH_SIZE,
        "num_classes": 0,
        "global_pool": "avg" if options.USE_MEAN_POOLING else "",
        "embed_dim": options.HIDDEN_DIM,
        "depth": options.NUM_LAYERS,
        "num_heads": options.NUM_HEADS,
        "qkv_bias": options.QKV_BIAS,
        "mlp_ratio": options.MLP_RATIO,
        "pos_drop_rate": options.DROPOUT_RATE,
        "proj_drop_rate": options.DROPOUT_RATE,
        "attn_drop_rate": options.ATTENTION_DROPOUT_RATE,
        "drop_path_rate": options.DROP_PATH_RATE,
        "init_values": options.INIT_VALUES or None,
        "use_abs_pos_emb": options.USE_ABS_POS_EMB,
        "use_rel_pos_bias": options.USE_REL_POS_BIAS,
        "use_shared_rel_pos_bias": options.USE_SHARED_REL_POS_BIAS,
    }
