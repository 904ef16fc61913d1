"""timm's vision transformer, with timm's parameter names and VISSL's features.

Every feature is read behind the final norm. `i` counts blocks from 0; `n` counts the last blocks.

    blkCLS{i}, lastCLS, concatCLS{n}        the class token
    lastBLK, concatBLK{n}                   all tokens, N x T x D
    lastPOOL, concatPOOL{n}                 the mean of the patches
    stridePOOL_{n}_{s}, stridePOOL_{n}      n such means, every s-th block from the last one back
    lastMAP                                 the patches as a map, N x D x H x W

The final feature is lastCLS; without a class token, lastPOOL.

`shown`, N x K indices of patches: all others are left out, as in masked autoencoders.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn

from sslengine.models.options import VisionTransformerOptions
from sslengine.models.trunks.patches import patch_grid, set_attention_scale
from sslengine.models.trunks.steps import Step, StepTrunk
from sslengine.registry import register_trunk

# What is read (CLS, BLK, POOL or MAP), and of which blocks.
Recipe = tuple[str, tuple[int, ...]]


@register_trunk("vision_transformer", "vision_transformer_fsdp", options=VisionTransformerOptions)
class VisionTransformer(StepTrunk, TimmVisionTransformer):  # type: ignore[misc] # Trunk's forward
    extra_inputs = ("shown",)
    block_names = r"blocks\.\d+"

    def __init__(self, options: VisionTransformerOptions, in_chans: int = 3) -> None:
        super().__init__(in_chans=in_chans, **_timm_arguments(options))
        self.parts = options.NUM_LAYERS if options.CHECKPOINT_BLOCK else 0
        self.patch_size = options.PATCH_SIZE
        self._recipes = dict(_recipes(options.NUM_LAYERS, options.USE_CLASS_TOKEN))
        self.feature_names = tuple(self._recipes)
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)
        if options.QK_SCALE:
            set_attention_scale((block.attn for block in self.blocks), options.QK_SCALE)

    def features(
        self, x: Tensor, wanted: Collection[str], shown: Tensor | None = None
    ) -> dict[str, Tensor]:
        grid = patch_grid(x, self.patch_size, "VISION_TRANSFORMERS")
        recipes = {name: self._recipes[name] for name in wanted}
        needed = {str(block) for _, blocks in recipes.values() for block in blocks}
        steps: list[Step] = [("", partial(self._embed, shown=shown))]
        steps += [(str(index), block) for index, block in enumerate(self.blocks)]
        outputs = self.run_steps(steps, x, needed)
        tokens = {int(index): self.norm(output) for index, output in outputs.items()}
        return {
            name: _joined([self._read(tokens[block], kind, grid) for block in blocks])
            for name, (kind, blocks) in recipes.items()
        }

    def _embed(self, x: Tensor, shown: Tensor | None) -> Tensor:
        tokens: Tensor = self._pos_embed(self.patch_embed(x))
        if shown is None:
            return tokens
        patches = tokens[:, self.num_prefix_tokens :]
        kept = patches.gather(1, shown.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))
        return torch.cat([tokens[:, : self.num_prefix_tokens], kept], dim=1)

    def _read(self, tokens: Tensor, kind: str, grid: tuple[int, int]) -> Tensor:
        if kind == "CLS":
            return tokens[:, 0]
        if kind == "BLK":
            return tokens
        patches = tokens[:, self.num_prefix_tokens :]
        if kind == "POOL":
            return patches.mean(1)
        return patches.mT.reshape(len(patches), -1, *grid)


def _timm_arguments(options: VisionTransformerOptions) -> dict[str, Any]:
    return {
        "img_size": options.IMAGE_SIZE,
        "patch_size": options.PATCH_SIZE,
        "num_classes": 0,
        "global_pool": "token" if options.USE_CLASS_TOKEN else "avg",
        "class_token": options.USE_CLASS_TOKEN,
        # The final norm stands before pooling, over all tokens.
        "fc_norm": False,
        "embed_dim": options.HIDDEN_DIM,
        "depth": options.NUM_LAYERS,
        "num_heads": options.NUM_HEADS,
        # timm cuts width * ratio to a whole number: the half keeps it from falling one short.
        "mlp_ratio": (options.MLP_DIM + 0.5) / options.HIDDEN_DIM,
        "qkv_bias": options.QKV_BIAS,
        "pos_drop_rate": options.DROPOUT_RATE,
        "proj_drop_rate": options.DROPOUT_RATE,
        "attn_drop_rate": options.ATTENTION_DROPOUT_RATE,
        "drop_path_rate": options.DROP_PATH_RATE,
        "dynamic_img_size": True,
    }


def _recipes(depth: int, class_token: bool) -> Iterator[tuple[str, Recipe]]:
    """Every feature name; the final feature comes last."""
    blocks = tuple(range(depth))
    for index in blocks if class_token else ():
        yield f"blkCLS{index}", ("CLS", (index,))
    for kind in ("CLS", "BLK", "POOL") if class_token else ("BLK", "POOL"):
        for count in range(1, depth + 1):
            yield f"concat{kind}{count}", (kind, blocks[-count:])
    for count in range(1, depth + 1):
        for stride in range(1, depth + 1):
            strided = blocks[::-stride][:count]
            if len(strided) == count:
                yield f"stridePOOL_{count}_{stride}", ("POOL", strided)
                if stride == math.ceil(depth / count):
                    yield f"stridePOOL_{count}", ("POOL", strided)
    last = blocks[-1:]
    yield "lastMAP", ("MAP", last)
    yield "lastBLK", ("BLK", last)
    finals = ("POOL", "CLS") if class_token else ("POOL",)
    for kind in finals:
        yield f"last{kind}", (kind, last)


def _joined(features: list[Tensor]) -> Tensor:
    return features[0] if len(features) == 1 else torch.cat(features, dim=-1)
