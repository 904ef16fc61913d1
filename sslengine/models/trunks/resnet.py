"""ResNet and ResNeXt out of torchvision's blocks, with torchvision's parameter names.

conv1   after the first convolution, norm and ReLU
res1    after the max-pool (with the small stem: the same as conv1)
res2 .. res5    the four stages
res5avg averaged over space, N x C x 1 x 1
flatten the same as N x C: the final feature
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, conv1x1

from sslengine.models.options import ResNetOptions
from sslengine.models.trunks.steps import Step, StepTrunk
from sslengine.registry import register_trunk

Norm = Callable[[int], nn.Module]


@register_trunk("resnet", options=ResNetOptions)
class ResNet(StepTrunk):
    feature_names = ("conv1", "res1", "res2", "res3", "res4", "res5", "res5avg", "flatten")
    block_names = r"layer\d+\.\d+"
    vissl_names = ((r"^", "_feature_blocks."),)

    def __init__(self, options: ResNetOptions, in_chans: int = 3) -> None:
        super().__init__()
        norm, channels = _norm(options), options.channels()
        if options.STEM == "imagenet":
            self.conv1 = nn.Conv2d(
                in_chans, channels, kernel_size=7, stride=2, padding=3, bias=False
            )
            self.maxpool: nn.Module = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        else:
            self.conv1 = nn.Conv2d(
                in_chans, channels, kernel_size=3, stride=1, padding=1, bias=False
            )
            self.maxpool = nn.Identity()
        self.bn1 = norm(channels)
        self.relu = nn.ReLU(inplace=True)
        self.layer1, self.layer2, self.layer3, self.layer4 = _stages(options, norm)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        _initialise(self, options.ZERO_INIT_RESIDUAL)

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        steps: list[Step] = [
            ("conv1", self._stem),
            ("res1", self.maxpool),
            ("res2", self.layer1),
            ("res3", self.layer2),
            ("res4", self.layer3),
            ("res5", self.layer4),
            ("res5avg", self.avgpool),
            ("flatten", partial(torch.flatten, start_dim=1)),
        ]
        return self.run_steps(steps, x, wanted)

    def _stem(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.bn1(self.conv1(x)))
        return out


def _norm(options: ResNetOptions) -> Norm:
    if options.NORM == "BatchNorm":
        return nn.BatchNorm2d
    # Layer norm over channels and space is group norm with a single group.
    return partial(nn.GroupNorm, 1 if options.NORM == "LayerNorm" else options.GROUPNORM_GROUPS)


def _stages(options: ResNetOptions, norm: Norm) -> list[nn.Sequential]:
    channels = options.channels()
    inputs, stages = channels, []
    for index, size in enumerate(options.stages()):
        stride = (1, 2, 2, options.LAYER4_STRIDE)[index]
        stage, inputs = _stage(options, norm, inputs, channels * 2**index, size, stride)
        stages.append(stage)
    return stages


def _stage(
    options: ResNetOptions, norm: Norm, inputs: int, planes: int, size: int, stride: int
) -> tuple[nn.Sequential, int]:
    """`size` blocks, the first of which takes `inputs` channels; and how many come out."""
    block = partial(
        BasicBlock if options.is_basic() else Bottleneck,
        planes=planes,
        groups=options.GROUPS,
        base_width=options.WIDTH_PER_GROUP,
        norm_layer=norm,
    )
    outputs = planes * (BasicBlock if options.is_basic() else Bottleneck).expansion
    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(conv1x1(inputs, outputs, stride), norm(outputs))
    first = block(inputs, stride=stride, downsample=shortcut)
    return nn.Sequential(first, *(block(outputs) for _ in range(size - 1))), outputs


def _initialise(trunk: nn.Module, zero_residual: bool) -> None:
    """As torchvision does. (Norms start at weight 1 and bias 0 by themselves.)"""
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    if zero_residual:
        for module in trunk.modules():
            if isinstance(module, (BasicBlock, Bottleneck)):
                last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
                nn.init.zeros_(last.weight)  # type: ignore[arg-type]
