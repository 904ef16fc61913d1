"""timm's Swin transformer, with timm's parameter names. Images may be any multiple of a patch.

stage1 .. stageN    the stages, N x C x H x W
lastMAP     the last stage normed, N x C x H x W
lastCLS     the same as flatten
flatten     the last stage normed and averaged, N x C: the final feature

A map whose sides are not multiples of the window is padded.
"""

from __future__ import annotations

from timm.models.swin_transformer import SwinTransformer as TimmSwinTransformer
from timm.models.swin_transformer import WindowAttention
from torch import nn

from sslengine.models.trunks.library import Feature
from sslengine.models.trunks.options import SwinTransformerOptions
from sslengine.models.trunks.patches import PatchTrunk, image_arguments, set_attention_scale
from sslengine.registry import register_trunk


@register_trunk("swin_transformer", "swin_transformer_official", options=SwinTransformerOptions)
class SwinTransformer(PatchTrunk, TimmSwinTransformer):  # type: ignore[misc] # Trunk's forward
    section = "config.MODEL.TRUNK.SWIN_TRANSFORMER"
    vissl_constants = r"\.(relative_position_index|attn_mask)$"
    # VISSL's downsampling is at the end of a stage, timm's at the start of the next.
    vissl_names = (
        (r"^layers\.(\d+)\.downsample", lambda match: f"layers.{int(match[1]) - 1}.downsample"),
    )
    block_names = r"layers\.\d+\.blocks\.\d+"

    def __init__(self, options: SwinTransformerOptions, in_chans: int = 3) -> None:
        super().__init__(
            in_chans=in_chans,
            embed_dim=options.EMBED_DIM,
            depths=tuple(options.DEPTHS),
            num_heads=tuple(options.NUM_HEADS),
            window_size=options.WINDOW_SIZE,
            mlp_ratio=options.MLP_RATIO,
            strict_img_size=False,
            **image_arguments(options),
        )
        self.patch_size = options.PATCH_SIZE
        # Dropout of the embeddings, in the place of the downsampling that the first stage lacks.
        self.layers[0].downsample = nn.Dropout(options.DROPOUT_RATE)
        # The outputs of timm's stages are N x H x W x C.
        table = {
            f"stage{index + 1}": Feature(
                (f"layers.{index}",), lambda trunk, given, x: given[0].permute(0, 3, 1, 2)
            )
            for index in range(len(options.DEPTHS))
        }
        final = Feature(("norm",), lambda trunk, given, x: given[0].mean((1, 2)))
        table["lastMAP"] = Feature(("norm",), lambda trunk, given, x: given[0].permute(0, 3, 1, 2))
        # VISSL returns the final feature under any name; its files call it lastCLS.
        self.set_features({**table, "lastCLS": final, "flatten": final})
        if options.QK_SCALE:
            attentions = (each for each in self.modules() if isinstance(each, WindowAttention))
            set_attention_scale(attentions, options.QK_SCALE)
