"""How images become the tokens of a vision transformer.

patches     a linear map of each patch (timm's)
conv        3 x 3 convolutions with stride 2, batch norm and ReLU, then 1 x 1: "Early Convolutions
            Help Transformers See Better", arXiv:2106.14881. Patches overlap, so what a mask
            hides can be seen at the border of its neighbours.
mlp         convolutions with kernel = stride, batch norm and GELU: a small network on each patch
            by itself, hMLP of arXiv:2203.09795. Nothing is seen of hidden patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.layers.patch_embed import PatchEmbed
from torch import nn

NARROWEST = 16


class StemEmbed(PatchEmbed):
    """timm's patch embedding with several layers in place of one."""

    def __init__(self, *, stem: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        sizes = (arguments[name] for name in ("patch_size", "in_chans", "embed_dim"))
        layers = (_conv if stem == "conv" else _mlp)(*sizes)
        self.proj: Any = nn.Sequential(*layers)


def _conv(patch_size: int, channels: int, width: int) -> Iterator[nn.Module]:
    """Each step is as wide as its share of the way: the last has the width of a token."""
    steps = patch_size.bit_length() - 1
    for step in range(1, steps + 1):
        out = max(NARROWEST, width >> (steps - step))
        yield nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False)
        yield nn.BatchNorm2d(out)
        yield nn.ReLU(inplace=True)
        channels = out
    yield nn.Conv2d(channels, width, 1)


def _mlp(patch_size: int, channels: int, width: int) -> Iterator[nn.Module]:
    """4 x 4 pixels first, as in the paper, then 2 x 2 at a time."""
    first = min(4, patch_size)
    sides = [first] + [2] * ((patch_size // first).bit_length() - 1)
    for number, side in enumerate(sides, start=1):
        out = width if number == len(sides) else max(NARROWEST, width // 4)
        yield nn.Conv2d(channels, out, side, stride=side, bias=False)
        yield nn.BatchNorm2d(out)
        yield nn.GELU()
        channels = out
    yield nn.Conv2d(channels, width, 1)
