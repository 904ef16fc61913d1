"""The first convolution of a trunk from a library that knows three channels alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

# How torchvision and Classy Vision draw the weights of convolutions.
by_fan_out: Callable[[Tensor], Tensor] = partial(
    nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu"
)


def with_inputs(
    layer: nn.Module, in_chans: int, draw: Callable[[Tensor], Tensor] | None = None
) -> nn.Conv2d:
    """The layer itself if it takes so many channels, else one like it.

    draw: initial weights, in place; by default those of torch's convolutions.
    """
    assert isinstance(layer, nn.Conv2d)
    if layer.in_channels == in_chans:
        return layer
    geometry: dict[str, Any] = {
        name: getattr(layer, name) for name in ("kernel_size", "stride", "padding")
    }
    bias = layer.bias is not None
    made = nn.Conv2d(in_chans, layer.out_channels, bias=bias, **geometry)
    if draw is not None:
        draw(made.weight)
    return made
