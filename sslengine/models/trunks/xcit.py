"""timm's XCiT, with timm's parameter names and VISSL's features. Images may have any size.

lastMAP     the patches as a map, N x D x H x W
lastCLS     the class token: the final feature
"""

from __future__ import annotations

from timm.models.xcit import Xcit as TimmXcit
from torch import Tensor

from sslengine.models.trunks.library import Feature, LibraryTrunk
from sslengine.models.trunks.options import XcitOptions
from sslengine.models.trunks.patches import block_arguments, image_arguments
from sslengine.registry import register_trunk


@register_trunk("xcit", "xcit_fsdp", options=XcitOptions)
class Xcit(LibraryTrunk, TimmXcit):  # type: ignore[misc] # Trunk's forward
    section = "config.MODEL.TRUNK.XCIT"
    block_names = r"(cls_attn_)?blocks\.\d+"
    vissl_names = (
        (r"^pos_embed\.", "pos_embeder."),
        (r"^(cls_attn_blocks\.\d+\.attn)\.[qkv]\.", r"\1.qkv."),
    )

    def __init__(self, options: XcitOptions, in_chans: int = 3) -> None:
        super().__init__(
            in_chans=in_chans,
            mlp_ratio=options.MLP_RATIO,
            cls_attn_layers=options.NUM_CLASS_LAYERS,
            eta=options.ETA,
            tokens_norm=options.TOKENS_NORM,
            **image_arguments(options),
            **block_arguments(options),
        )
        self.patch_size = options.PATCH_SIZE
        self.set_features(
            {
                "lastMAP": Feature(("norm",), lambda trunk, given, x: trunk.as_map(given[0], x)),
                "lastCLS": Feature(("norm",), lambda trunk, given, x: given[0][:, 0]),
            }
        )
        layers = {r"blocks\.\d+": options.CHECKPOINT_XCA_BLOCK,
                  r"cls_attn_blocks\.\d+": options.CHECKPOINT_ATTN_BLOCK}  # fmt: skip
        if chosen := "|".join(names for names, asked in layers.items() if asked):
            self.checkpoint_activations(options.NUM_LAYERS + options.NUM_CLASS_LAYERS, chosen)

    def as_map(self, tokens: Tensor, x: Tensor) -> Tensor:
        # Each convolution of stride 2 rounds the sides up.
        grid = (-(-side // self.patch_size) for side in x.shape[-2:])
        return tokens[:, 1:].mT.reshape(len(tokens), -1, *grid)
