"""ResNet and ResNeXt from torchvision's blocks, with torchvision's parameter names.

conv1   after the first convolution, norm and ReLU
res1    after the max-pool (with the small stem: the same as conv1)
res2 .. res5    the four stages
res5avg averaged over space, N x C x 1 x 1
flatten the same as N x C: the final feature
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.resnet import ResNet as TorchvisionResNet

from sslengine.models.options import ResNetOptions
from sslengine.models.trunks.library import Design, Feature, LibraryTrunk, by_fan_out, named
from sslengine.registry import register_trunk


@register_trunk("resnet", options=ResNetOptions)
class ResNet(LibraryTrunk, TorchvisionResNet):  # type: ignore[misc] # Trunk's forward
    section = "config.MODEL.TRUNK.RESNETS"
    table = {
        **named(conv1="relu", res1="maxpool", res2="layer1", res3="layer2", res4="layer3"),
        **named(res5="layer4", res5avg="avgpool"),
        "flatten": Feature(("",)),
    }
    feature_names = tuple(table)
    block_names = r"layer\d+\.\d+"
    vissl_names = ((r"^", "_feature_blocks."),)

    def __init__(self, options: ResNetOptions, in_chans: int = 3) -> None:
        # torchvision's __init__ supports only a stem of 64 channels.
        nn.Module.__init__(self)
        self._norm_layer, self.inplanes = _norm(options), options.channels()[0]
        self.groups, self.base_width, self.dilation = options.GROUPS, options.WIDTH_PER_GROUP, 1
        block = BasicBlock if options.is_basic() else Bottleneck
        large = options.STEM == "imagenet"
        kernel, stride = (7, 2) if large else (3, 1)
        self.conv1 = nn.Conv2d(in_chans, self.inplanes, kernel, stride, kernel // 2, bias=False)
        self.bn1, self.relu = self._norm_layer(self.inplanes), nn.ReLU(inplace=True)
        self.maxpool = cast(Any, nn.MaxPool2d(3, 2, 1) if large else nn.Identity())
        strides = (1, 2, 2, options.LAYER4_STRIDE)
        stages = zip(options.channels(), options.stages(), strides, strict=True)
        for number, (channels, blocks, stride) in enumerate(stages, start=1):
            setattr(self, f"layer{number}", self._make_layer(block, channels, blocks, stride))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), cast(Any, nn.Identity())
        _initialise(self, options.ZERO_INIT_RESIDUAL)
        self.designs = _designs(options)
        self.set_features(self.table)


def _norm(options: ResNetOptions) -> Callable[[int], nn.Module]:
    if options.NORM == "BatchNorm":
        return nn.BatchNorm2d
    # Layer norm over channels and space is group norm with a single group.
    return partial(nn.GroupNorm, 1 if options.NORM == "LayerNorm" else options.GROUPNORM_GROUPS)


def _initialise(trunk: nn.Module, zero_residual: bool) -> None:
    """Initialise as torchvision does. (torch initialises norms with weight 1 and bias 0.)"""
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d):
            by_fan_out(module.weight)
        if zero_residual and isinstance(module, (BasicBlock, Bottleneck)):
            last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
            nn.init.zeros_(last.weight)  # type: ignore[arg-type]


def _designs(options: ResNetOptions) -> dict[str, Design | str]:
    """Return what the libraries call it; a text: an option that their functions do not have."""
    usual = {"WIDTH_MULTIPLIER": 1, "CHANNELS": [], "NORM": "BatchNorm", "LAYER4_STRIDE": 2}
    for key, value in usual.items():
        if getattr(options, key) != value:
            return dict.fromkeys(("torchvision", "timm"), f"{key} {getattr(options, key)}")
    names = {"torchvision": ("groups", "width_per_group"), "timm": ("cardinality", "base_width")}
    groups = options.GROUPS, options.WIDTH_PER_GROUP
    arguments: dict[str, dict[str, Any]] = {
        library: {} if groups == (1, 64) else dict(zip(keys, groups, strict=True))
        for library, keys in names.items()
    }
    found: dict[str, Design | str] = {
        library: Design(f"resnet{options.DEPTH}", given) for library, given in arguments.items()
    }
    if options.BLOCKS or options.is_basic() != (options.DEPTH in (18, 34)) or options.DEPTH == 200:
        stages, base = list(options.stages()), "resnet18" if options.is_basic() else "resnet50"
        found["torchvision"] = f"BLOCKS {stages}"
        found["timm"] = Design(base, {"layers": stages, **arguments["timm"]})
    if options.STEM != "imagenet":
        found["timm"] = f"STEM {options.STEM}"
    return found
