"""timm's ConvNeXt, with timm's parameter names.

stem    after the first convolution and norm
stage1 .. stageN    the stages
flatten averaged over space and normed, N x C: the final feature
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from timm.models.convnext import ConvNeXt as TimmConvNeXt
from timm.models.convnext import ConvNeXtStage
from torch import Tensor

from sslengine.models.trunks.options import ConvNextOptions
from sslengine.models.trunks.steps import Step, StepTrunk
from sslengine.registry import register_trunk


@register_trunk("convnext", options=ConvNextOptions)
class ConvNext(StepTrunk, TimmConvNeXt):  # type: ignore[misc] # Trunk's forward
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
        stages = (f"stage{index}" for index in range(1, 1 + len(options.DEPTH)))
        self.feature_names = ("stem", *stages, "flatten")

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        steps: list[Step] = [("stem", self.stem)]
        stages = cast("list[ConvNeXtStage]", list(self.stages))
        for name, stage in zip(self.feature_names[1:], stages, strict=False):
            steps += [("", stage.downsample), (name, stage.blocks)]
        steps.append(("flatten", self.head))
        return self.run_steps(steps, x, wanted)
