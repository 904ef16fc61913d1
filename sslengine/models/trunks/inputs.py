"""Replace the first convolution of a library's network that takes three channels only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

# The initialisation of convolutions in torchvision and Classy Vision.
by_fan_out: Callable[[Tensor], Tensor] = partial(
    nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu"
)


def with_inputs(
    layer: nn.Module, in_chans: int, draw: Callable[[Tensor], Tensor] | None = None
) -> nn.Conv2d:
    """Return the layer if it takes `in_chans` channels, else a similar one that does.

    draw: initialise the weights in place; by default as torch's convolutions.
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
