"""Classy Vision's RegNet and EfficientNet, with its parameter names and VISSL's features."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.functional import silu

from sslengine.errors import ConfigError
from sslengine.models.trunks.library import Feature, LibraryTrunk, by_fan_out, named, take_channels
from sslengine.models.trunks.options import EfficientNetOptions, RegNetOptions
from sslengine.registry import register_trunk

# Classy Vision imports modules that it deprecates itself.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from classy_vision.models import MODEL_REGISTRY
    from classy_vision.models.anynet import (
        ActivationType,
        AnyNet,
        AnyNetParams,
        BlockType,
        StemType,
    )
    from classy_vision.models.efficientnet import MODEL_PARAMS, EfficientNet, MBConvBlock
    from classy_vision.models.regnet import RegNet, RegNetParams


# In VISSL, regnet_v2 and regnet_fsdp can shard a very wide network; they are the same network.
@register_trunk("regnet", "regnet_v2", "regnet_fsdp", options=RegNetOptions)
class RegNetTrunk(LibraryTrunk):
    """
    conv1   after the stem
    res2 .. resN    the stages (res5 is the last of the published networks)
    avgpool averaged over space, N x C x 1 x 1
    flatten the same as N x C: the final feature
    """

    section = "config.MODEL.TRUNK.REGNET"
    block_names = r"trunk_output\.[^.]+\.[^.]+"
    vissl_names = (
        (r"^stem\.", "conv1."),
        (r"^trunk_output\.block(\d+)\.", lambda match: f"res{int(match[1]) + 1}."),
        (r"^", "_feature_blocks."),
    )

    def __init__(self, options: RegNetOptions, in_chans: int = 3) -> None:
        super().__init__()
        whole = _build(options)
        self.stem, self.trunk_output = whole.stem, whole.trunk_output
        first: Any = self.stem.stem
        first[0] = take_channels(first[0], in_chans, by_fan_out)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        names = (f"trunk_output.{name}" for name in self.trunk_output._modules)
        stages = {f"res{index}": name for index, name in enumerate(names, start=2)}
        flat = Feature(("avgpool",), lambda trunk, given, x: given[0].flatten(1))
        self.set_features(named(conv1="stem", **stages, avgpool="avgpool") | {"flatten": flat})

    def final_feature(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.avgpool(self.trunk_output(self.stem(x)))).flatten(1)


def _build(options: RegNetOptions) -> Any:
    shared = _convert_enums(options.given(*options.OUTSIDE_BLOCKS, *options.BLOCKS))
    if options.name == "anynet":
        return AnyNet(AnyNetParams(**options.given(*options.STAGES), **shared))
    if options.name:
        return MODEL_REGISTRY[options.name](**shared)
    if options.depth is None:
        raise ConfigError(
            "config.MODEL.TRUNK.REGNET: set `name` to a published network (regnet_y_16gf), or set "
            f"all of {', '.join(options.RULE)}."
        )
    rule = options.given(*options.RULE, "bottleneck_multiplier")
    return RegNet(RegNetParams(**rule, **shared))


def _convert_enums(given: dict[str, Any]) -> dict[str, Any]:
    kinds = {
        "stem_type": StemType,
        "block_type": BlockType,
        "activation": ActivationType,
    }
    for key in kinds.keys() & given.keys():
        given[key] = kinds[key][given[key].upper()]
    return given


# ---- EfficientNet


class DroppingBlock(MBConvBlock):  # type: ignore[misc] # Classy has no types
    """A block that stores its drop rate."""

    drop_rate: float

    def forward(self, inputs: Tensor, drop_connect_rate: None = None) -> Tensor:
        output = super().forward(inputs, self.drop_rate)  # type: ignore[no-untyped-call]
        return cast(Tensor, output)


@register_trunk("efficientnet", options=EfficientNetOptions)
class EfficientNetTrunk(LibraryTrunk):
    """
    conv1   after the stem
    block0 .. blockN    the blocks of all stages
    conv_final  after the last convolution
    avgpool averaged over space, N x C x 1 x 1
    flatten the same as N x C
    dropout the same after dropout: the final feature
    """

    section = "config.MODEL.TRUNK.EFFICIENT_NETS"
    block_names = r"blocks\.[^.]+"

    def __init__(self, options: EfficientNetOptions, in_chans: int = 3) -> None:
        super().__init__()
        arguments = asdict(options)
        size = MODEL_PARAMS[arguments.pop("model_version")]
        # The classifier is not used.
        whole = EfficientNet(num_classes=1, model_params=size, **arguments)
        self.conv_stem, self.bn0, self.blocks = whole.conv_stem, whole.bn0, whole.blocks
        self.conv_stem = take_channels(self.conv_stem, in_chans, by_fan_out)
        self.conv_head, self.bn1 = whole.conv_head, whole.bn1
        self.avgpool, self.dropout = whole.avg_pooling, whole.dropout
        for index, block in enumerate(self.blocks):
            block.__class__ = DroppingBlock
            cast(DroppingBlock, block).drop_rate = (
                options.drop_connect_rate * index / len(self.blocks)
            )
        names = [*self.blocks._modules]
        blocks = {f"block{index}": f"blocks.{name}" for index, name in enumerate(names)}
        numbered = {name: index for index, name in enumerate(names)}
        self.vissl_names = (
            (r"^conv_stem\.", "conv1.0."),
            (r"^bn0\.", "conv1.1."),
            (r"^conv_head\.", "conv_final.0."),
            (r"^bn1\.", "conv_final.1."),
            (r"^blocks\.([^.]+)", lambda match: f"block{numbered[match[1]]}"),
            (r"^", "_feature_blocks."),
        )
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
