"""timm's ConvNeXt, with timm's parameter names.

stem    after the first convolution and norm
stage1 .. stageN    the stages
lastCLS the same as flatten
flatten averaged over space and normed, N x C: the final feature
"""

from __future__ import annotations

from timm.models.convnext import ConvNeXt as TimmConvNeXt

from sslengine.models.trunks.library import LibraryTrunk, named
from sslengine.models.trunks.options import ConvNextOptions
from sslengine.registry import register_trunk


@register_trunk("convnext", options=ConvNextOptions)
class ConvNext(LibraryTrunk, TimmConvNeXt):  # type: ignore[misc] # Trunk's forward
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

    def __init__(self, options: ConvNextOptions, in_chans: int = 3) -> None:
        super().__init__(
            in_chans=in_chans,
            num_classes=0,
            depths=tuple(options.DEPTH),
            dims=tuple(options.DIMS),
            drop_path_rate=options.DROP_PATH_RATE,
        )
        stages = {f"stage{i + 1}": f"stages.{i}" for i in range(len(options.DEPTH))}
        # VISSL returns the final feature under any name; its files call it lastCLS.
        self.set_features(named(stem="stem", **stages, lastCLS="head", flatten="head"))
