"""SimCLRv2's ResNet with selective kernels, with the parameter names that VISSL's weights have.

Chen et al., Big Self-Supervised Models are Strong Semi-Supervised Learners, 2020. In place of a
block's 3x3 convolution there are two, mixed channel by channel with weights that a small network
computes from the mean over space.

res1    after the stem
res2 .. res5    the four stages
flatten averaged over space, N x C: the final feature
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sslengine.models.trunks.library import Feature, LibraryTrunk, by_fan_out, named
from sslengine.models.trunks.options import ResNetSKOptions
from sslengine.registry import register_trunk

STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
LEAST_WIDTH = 32  # of the network that computes the mixture


class SelectiveKernelNet(nn.Module):
    def __init__(self, options: ResNetSKOptions, in_chans: int) -> None:
        super().__init__()
        width, before = options.channels(), options.channels()
        parts: list[nn.Module] = [_stem(in_chans, width, options.SK_RATIO > 0)]
        for index, count in enumerate(STAGES[options.DEPTH]):
            inside = width * 2**index
            parts.append(_Stage(count, before, inside, 1 if index == 0 else 2, options.SK_RATIO))
            before = 4 * inside
        self.net = nn.Sequential(*parts)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                by_fan_out(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x)
        return found


@register_trunk("resnet_sk", options=ResNetSKOptions)
class ResNetSK(LibraryTrunk, SelectiveKernelNet):  # type: ignore[misc] # Trunk's forward
    section = "config.MODEL.TRUNK.RESNETS_SK"
    block_names = r"net\.\d+\.blocks\.\d+"

    def __init__(self, options: ResNetSKOptions, in_chans: int = 3) -> None:
        super().__init__(options, in_chans)
        final = Feature(("net.4",), lambda trunk, given, x: given[0].mean((2, 3)))
        stages = {f"res{index + 1}": f"net.{index}" for index in range(5)}
        self.set_features({**named(**stages), "flatten": final})


def _conv(before: int, after: int, kernel: int = 1, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel, stride, (kernel - 1) // 2, bias=False)


def _norm(width: int, relu: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(width), nn.ReLU() if relu else nn.Identity())


def _stem(in_chans: int, width: int, selective: bool) -> nn.Sequential:
    half = width // 2
    first = [_conv(in_chans, width, 7, 2)]
    three = [
        _conv(in_chans, half, 3, 2), _norm(half), _conv(half, half, 3), _norm(half),
        _conv(half, width, 3),
    ]  # fmt: skip
    return nn.Sequential(*(three if selective else first), _norm(width), nn.MaxPool2d(3, 2, 1))


class _SelectiveKernel(nn.Module):
    def __init__(self, width: int, stride: int, ratio: float) -> None:
        super().__init__()
        inside = max(int(width * ratio), LEAST_WIDTH)
        self.main_conv = nn.Sequential(_conv(width, 2 * width, 3, stride), _norm(2 * width))
        self.mixing_conv = nn.Sequential(
            _conv(width, inside), _norm(inside), _conv(inside, 2 * width)
        )

    def forward(self, x: Tensor) -> Tensor:
        both = self.main_conv(x).unflatten(1, (2, -1))
        means = both.sum(dim=1).mean((2, 3), keepdim=True)
        shares = self.mixing_conv(means).unflatten(1, (2, -1)).softmax(dim=1)
        mixed: Tensor = (both * shares).sum(dim=1)
        return mixed


class _Projection(nn.Module):
    def __init__(self, before: int, after: int, stride: int, selective: bool) -> None:
        super().__init__()
        self.shortcut = (
            nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.AvgPool2d(2, stride), _conv(before, after))
            if selective
            else _conv(before, after, 1, stride)
        )
        self.bn = _norm(after, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.bn(self.shortcut(x))
        return found


class _Block(nn.Module):
    def __init__(self, before: int, inside: int, stride: int, ratio: float, projects: bool) -> None:
        super().__init__()
        self.projection = (
            _Projection(before, 4 * inside, stride, ratio > 0) if projects else nn.Identity()
        )
        middle = (
            [_SelectiveKernel(inside, stride, ratio)]
            if ratio > 0
            else [_conv(inside, inside, 3, stride), _norm(inside)]
        )
        self.net = nn.Sequential(
            _conv(before, inside), _norm(inside), *middle, _conv(inside, 4 * inside),
            _norm(4 * inside, relu=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.projection(x) + self.net(x))


class _Stage(nn.Module):
    def __init__(self, count: int, before: int, inside: int, stride: int, ratio: float) -> None:
        super().__init__()
        first = _Block(before, inside, stride, ratio, projects=True)
        rest = (_Block(4 * inside, inside, 1, ratio, projects=False) for _ in range(count - 1))
        self.blocks = nn.ModuleList([first, *rest])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x
