"""Classy Vision's EfficientNet, with its parameter names and VISSL's features.

conv1   after the stem
block0 .. blockN    the blocks of all stages
conv_final  after the last convolution
avgpool averaged over space, N x C x 1 x 1
flatten the same as N x C
dropout the same after dropout: the final feature
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import cast

from torch import Tensor
from torch.nn.functional import silu

from sslengine.models.trunks import classy
from sslengine.models.trunks.inputs import by_fan_out, with_inputs
from sslengine.models.trunks.library import Feature, LibraryTrunk, named
from sslengine.models.trunks.options import EfficientNetOptions
from sslengine.registry import register_trunk


class Block(classy.MBConvBlock):  # type: ignore[misc] # Classy has no types
    """A block that stores its drop rate."""

    drop_rate: float

    def forward(self, inputs: Tensor, drop_connect_rate: None = None) -> Tensor:
        output = super().forward(inputs, self.drop_rate)  # type: ignore[no-untyped-call]
        return cast(Tensor, output)


@register_trunk("efficientnet", options=EfficientNetOptions)
class EfficientNet(LibraryTrunk):
    section = "config.MODEL.TRUNK.EFFICIENT_NETS"
    block_names = r"blocks\.[^.]+"

    def __init__(self, options: EfficientNetOptions, in_chans: int = 3) -> None:
        super().__init__()
        arguments = asdict(options)
        size = classy.MODEL_PARAMS[arguments.pop("model_version")]
        # The classifier is not used.
        whole = classy.EfficientNet(num_classes=1, model_params=size, **arguments)
        self.conv_stem, self.bn0, self.blocks = whole.conv_stem, whole.bn0, whole.blocks
        self.conv_stem = with_inputs(self.conv_stem, in_chans, by_fan_out)
        self.conv_head, self.bn1 = whole.conv_head, whole.bn1
        self.avgpool, self.dropout = whole.avg_pooling, whole.dropout
        for index, block in enumerate(self.blocks):
            block.__class__ = Block
            cast(Block, block).drop_rate = options.drop_connect_rate * index / len(self.blocks)
        self.positions = {name: index for index, name in enumerate(self.blocks._modules)}
        blocks = {f"block{index}": f"blocks.{name}" for name, index in self.positions.items()}
        self.set_features(
            {
                "conv1": Feature(("bn0",), lambda trunk, given, x: silu(given[0])),
                **named(**blocks),
                "conv_final": Feature(("bn1",), lambda trunk, given, x: silu(given[0])),
                **named(avgpool="avgpool"),
                "flatten": Feature(("avgpool",), lambda trunk, given, x: given[0].flatten(1)),
                **named(dropout="dropout"),
            }
        )

    def final_feature(self, x: Tensor) -> Tensor:
        x = self.blocks(silu(self.bn0(self.conv_stem(x))))
        x = self.avgpool(silu(self.bn1(self.conv_head(x))))
        return cast(Tensor, self.dropout(x.flatten(1)))

    def vissl_name(self, name: str) -> str:
        for ours, theirs in (
            ("conv_stem.", "conv1.0."),
            ("bn0.", "conv1.1."),
            ("conv_head.", "conv_final.0."),
            ("bn1.", "conv_final.1."),
        ):
            if name.startswith(ours):
                return f"_feature_blocks.{theirs}{name.removeprefix(ours)}"
        return re.sub(
            r"^blocks\.([^.]+)", lambda m: f"_feature_blocks.block{self.positions[m[1]]}", name
        )
