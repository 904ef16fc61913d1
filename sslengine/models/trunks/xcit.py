"""timm's XCiT, with timm's parameter names and VISSL's features. Images may have any size.

lastMAP     the patches as a map, N x D x H x W
lastCLS     the class token: the final feature
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from timm.models.xcit import Xcit as TimmXcit
from torch import Tensor

from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.options import XcitOptions
from sslengine.models.trunks.steps import Step, run, run_in_parts
from sslengine.registry import register_trunk


@register_trunk("xcit", "xcit_fsdp", options=XcitOptions)
class Xcit(Trunk, TimmXcit):  # type: ignore[misc] # Trunk's forward
    feature_names = ("lastMAP", "lastCLS")
    block_names = r"(cls_attn_)?blocks\.\d+"
    vissl_names = (
        (r"^pos_embed\.", "pos_embeder."),
        (r"^(cls_attn_blocks\.\d+\.attn)\.[qkv]\.", r"\1.qkv."),
    )

    def __init__(self, options: XcitOptions, in_chans: int = 3) -> None:
        super().__init__(in_chans=in_chans, **_timm_arguments(options))
        self.patch_size = options.PATCH_SIZE
        self.parts = len(self.blocks) + 1 if options.CHECKPOINT_XCA_BLOCK else 0
        self.class_parts = len(self.cls_attn_blocks) + 2 if options.CHECKPOINT_ATTN_BLOCK else 0

    def checkpoint_activations(self, parts: int) -> None:
        self.parts, self.class_parts = parts, 1

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        # Each halving rounds up.
        height, width = (-(-side // self.patch_size) for side in x.shape[-2:])
        layers: list[Step] = [("", self._embed)]
        layers += [("", partial(block, H=height, W=width)) for block in self.blocks]
        class_layers: list[Step] = [("", self._with_class_token)]
        class_layers += [("", block) for block in self.cls_attn_blocks]
        tokens = self._run([*layers, ("out", torch.nn.Identity())], x, self.parts)
        tokens = self._run([*class_layers, ("out", self.norm)], tokens, self.class_parts)
        patches = tokens[:, 1:].mT
        return {
            "lastMAP": patches.reshape(*patches.shape[:2], height, width),
            "lastCLS": tokens[:, 0],
        }

    def _run(self, steps: list[Step], x: Tensor, parts: int) -> Tensor:
        if parts and torch.is_grad_enabled():
            return run_in_parts(steps, x, ("out",), parts, owner=self)["out"]
        return run(steps, x, ("out",))["out"]

    def _embed(self, x: Tensor) -> Tensor:
        patches, grid = self.patch_embed(x)
        places = self.pos_embed(len(x), *grid).flatten(2).mT
        embedded: Tensor = self.pos_drop(patches + places)
        return embedded

    def _with_class_token(self, patches: Tensor) -> Tensor:
        return torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)


def _timm_arguments(options: XcitOptions) -> dict[str, Any]:
    return {
        "img_size": options.IMAGE_SIZE,
        "patch_size": options.PATCH_SIZE,
        "num_classes": 0,
        "embed_dim": options.HIDDEN_DIM,
        "depth": options.NUM_LAYERS,
        "cls_attn_layers": options.NUM_CLASS_LAYERS,
        "num_heads": options.NUM_HEADS,
        "mlp_ratio": options.MLP_RATIO,
        "qkv_bias": options.QKV_BIAS,
        "pos_drop_rate": options.DROPOUT_RATE,
        "proj_drop_rate": options.DROPOUT_RATE,
        "attn_drop_rate": options.ATTENTION_DROPOUT_RATE,
        "drop_path_rate": options.DROP_PATH_RATE,
        "eta": options.ETA,
        "tokens_norm": options.TOKENS_NORM,
    }
