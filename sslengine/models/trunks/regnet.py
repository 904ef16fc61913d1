"""Classy Vision's RegNet, with its parameter names and VISSL's features.

conv1   after the stem
res2 .. resN    the stages (res5 is the last of the published networks)
avgpool averaged over space, N x C x 1 x 1
flatten the same as N x C: the final feature
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.models.trunks import classy
from sslengine.models.trunks.inputs import by_fan_out, with_inputs
from sslengine.models.trunks.library import Feature, LibraryTrunk, named
from sslengine.models.trunks.options import RegNetOptions
from sslengine.registry import register_trunk


# In VISSL, regnet_v2 and regnet_fsdp can shard a very wide network; they are the same network.
@register_trunk("regnet", "regnet_v2", "regnet_fsdp", options=RegNetOptions)
class RegNet(LibraryTrunk):
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
        first[0] = with_inputs(first[0], in_chans, by_fan_out)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        names = (f"trunk_output.{name}" for name in self.trunk_output._modules)
        stages = {f"res{index}": name for index, name in enumerate(names, start=2)}
        flat = Feature(("avgpool",), lambda trunk, given, x: given[0].flatten(1))
        self.set_features(named(conv1="stem", **stages, avgpool="avgpool") | {"flatten": flat})

    def final_feature(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.avgpool(self.trunk_output(self.stem(x)))).flatten(1)


def _build(options: RegNetOptions) -> Any:
    shared = _with_enums(options.given(*options.OUTSIDE_BLOCKS, *options.BLOCKS))
    if options.name == "anynet":
        return classy.AnyNet(classy.AnyNetParams(**options.given(*options.STAGES), **shared))
    if options.name:
        return classy.MODEL_REGISTRY[options.name](**shared)
    if options.depth is None:
        raise ConfigError(
            "config.MODEL.TRUNK.REGNET: set `name` to a published network (regnet_y_16gf), or set "
            f"all of {', '.join(options.RULE)}."
        )
    rule = options.given(*options.RULE, "bottleneck_multiplier")
    return classy.RegNet(classy.RegNetParams(**rule, **shared))


def _with_enums(given: dict[str, Any]) -> dict[str, Any]:
    kinds = {
        "stem_type": classy.StemType,
        "block_type": classy.BlockType,
        "activation": classy.ActivationType,
    }
    for key in kinds.keys() & given.keys():
        given[key] = kinds[key][given[key].upper()]
    return given
