"""Classy Vision's EfficientNet, with its parameter names and VISSL's features.

conv1   after the stem
block0 .. blockN    the blocks, counted through all stages
conv_final  after the last convolution
avgpool averaged over space, N x C x 1 x 1
flatten the same as N x C
dropout the same behind dropout: the final feature
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor, nn

from sslengine.models.trunks import classy
from sslengine.models.trunks.inputs import by_fan_out, with_inputs
from sslengine.models.trunks.options import EfficientNetOptions
from sslengine.models.trunks.steps import Step, StepTrunk
from sslengine.registry import register_trunk


@register_trunk("efficientnet", options=EfficientNetOptions)
class EfficientNet(StepTrunk):
    block_names = r"blocks\.[^.]+"

    def __init__(self, options: EfficientNetOptions, in_chans: int = 3) -> None:
        super().__init__()
        arguments = asdict(options)
        size = classy.MODEL_PARAMS[arguments.pop("model_version")]
        # Its classifier is left behind.
        whole = classy.EfficientNet(num_classes=1, model_params=size, **arguments)
        self.conv_stem, self.bn0, self.blocks = whole.conv_stem, whole.bn0, whole.blocks
        self.conv_stem = with_inputs(self.conv_stem, in_chans, by_fan_out)
        self.conv_head, self.bn1 = whole.conv_head, whole.bn1
        self.activation = nn.SiLU()
        self.avgpool, self.dropout = whole.avg_pooling, whole.dropout
        count = len(self.blocks)
        self.drop_rates = [options.drop_connect_rate * index / count for index in range(count)]
        blocks = (f"block{index}" for index in range(count))
        self.feature_names = ("conv1", *blocks, "conv_final", "avgpool", "flatten", "dropout")

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        steps: list[Step] = [("conv1", self._stem)]
        for index, (block, rate) in enumerate(zip(self.blocks, self.drop_rates, strict=True)):
            steps.append((f"block{index}", partial(block, drop_connect_rate=rate)))
        steps += [
            ("conv_final", self._last),
            ("avgpool", self.avgpool),
            ("flatten", partial(torch.flatten, start_dim=1)),
            ("dropout", self.dropout),
        ]
        return self.run_steps(steps, x, wanted)

    def _stem(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.bn0(self.conv_stem(x)))
        return out

    def _last(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.bn1(self.conv_head(x)))
        return out

    def vissl_name(self, name: str) -> str:
        for ours, theirs in (
            ("conv_stem.", "conv1.0."),
            ("bn0.", "conv1.1."),
            ("conv_head.", "conv_final.0."),
            ("bn1.", "conv_final.1."),
        ):
            if name.startswith(ours):
                return f"_feature_blocks.{theirs}{name.removeprefix(ours)}"
        position = {block: index for index, block in enumerate(self.blocks._modules)}
        return re.sub(r"^blocks\.([^.]+)", lambda m: f"_feature_blocks.block{position[m[1]]}", name)
