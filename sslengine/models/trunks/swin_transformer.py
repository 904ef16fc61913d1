"""timm's Swin transformer, with timm's parameter names. Images may have any size patches divide.

stage1 .. stageN    the stages, N x C x H x W
flatten     the last stage normed and averaged, N x C: the final feature

A map that windows do not divide is padded to whole windows, and so is one smaller than a window.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, cast

import torch
from timm.models.swin_transformer import SwinTransformer as TimmSwinTransformer
from timm.models.swin_transformer import SwinTransformerStage, WindowAttention
from torch import Tensor, nn

from sslengine.models.trunks.options import SwinTransformerOptions
from sslengine.models.trunks.patches import patch_grid, set_attention_scale
from sslengine.models.trunks.steps import Step, StepTrunk
from sslengine.registry import register_trunk


@register_trunk("swin_transformer", "swin_transformer_official", options=SwinTransformerOptions)
class SwinTransformer(StepTrunk, TimmSwinTransformer):  # type: ignore[misc] # Trunk's forward
    vissl_constants = r"\.(relative_position_index|attn_mask)$"
    # The step from one stage to the next belongs to the first there, to the second here.
    vissl_names = (
        (r"^layers\.(\d+)\.downsample", lambda match: f"layers.{int(match[1]) - 1}.downsample"),
    )
    block_names = r"layers\.\d+\.blocks\.\d+"

    def __init__(self, options: SwinTransformerOptions, in_chans: int = 3) -> None:
        super().__init__(in_chans=in_chans, **_timm_arguments(options))
        self.patch_size = options.PATCH_SIZE
        self.pos_drop = nn.Dropout(options.DROPOUT_RATE)
        stages = (f"stage{index}" for index in range(1, 1 + len(options.DEPTHS)))
        self.feature_names = (*stages, "flatten")
        if options.QK_SCALE:
            attentions = (each for each in self.modules() if isinstance(each, WindowAttention))
            set_attention_scale(attentions, options.QK_SCALE)

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        patch_grid(x, self.patch_size, "SWIN_TRANSFORMER")
        steps: list[Step] = [("", self.patch_embed), ("", self.pos_drop)]
        stages = cast("list[SwinTransformerStage]", list(self.layers))
        for name, stage in zip(self.feature_names, stages, strict=False):
            steps += [("", stage.downsample), (name, stage.blocks)]
        steps += [("", self.norm), ("flatten", partial(torch.mean, dim=(1, 2)))]
        found = self.run_steps(steps, x, wanted)
        # Inside, channels come last.
        return {
            name: feature if name == "flatten" else feature.permute(0, 3, 1, 2)
            for name, feature in found.items()
        }


def _timm_arguments(options: SwinTransformerOptions) -> dict[str, Any]:
    return {
        "img_size": options.IMAGE_SIZE,
        "patch_size": options.PATCH_SIZE,
        "num_classes": 0,
        "embed_dim": options.EMBED_DIM,
        "depths": tuple(options.DEPTHS),
        "num_heads": tuple(options.NUM_HEADS),
        "window_size": options.WINDOW_SIZE,
        "mlp_ratio": options.MLP_RATIO,
        "qkv_bias": options.QKV_BIAS,
        "proj_drop_rate": options.DROPOUT_RATE,
        "attn_drop_rate": options.ATTENTION_DROPOUT_RATE,
        "drop_path_rate": options.DROP_PATH_RATE,
        "strict_img_size": False,
    }
