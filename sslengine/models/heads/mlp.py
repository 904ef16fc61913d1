"""Linear layers, each optionally followed by batch norm, an activation and dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.registry import register_head


def linear_layers(
    dims: Sequence[int],
    use_bn: bool = False,
    activation: Callable[[], nn.Module] | None = None,
    use_dropout: bool = False,
    use_bias: bool = True,
    plain_last: bool = True,
    initialise: Callable[[nn.Linear], object] = lambda layer: None,
) -> nn.Sequential:
    """Build linear layers of these widths; plain_last: nothing comes after the last one."""
    layers = nn.Sequential()
    for index, (inputs, outputs) in enumerate(pairwise(dims), start=2):
        linear = nn.Linear(inputs, outputs, bias=use_bias)
        initialise(linear)
        layers.append(linear)
        if index == len(dims) and plain_last:
            break
        if use_bn:
            layers.append(nn.BatchNorm1d(outputs))
        if activation is not None:
            layers.append(activation())
        if use_dropout:
            layers.append(nn.Dropout())
    return layers


def perceptron(dims: Sequence[int], use_bn: bool) -> nn.Module:
    """Build linear layers; between them GELU, and batch norm before it if asked."""
    layers = linear_layers(dims, use_bn, nn.GELU, initialise=_draw_normal)
    # A single layer keeps VISSL's name: mlp.weight.
    return layers if len(layers) > 1 else layers[0]


def _draw_normal(linear: nn.Linear) -> None:
    nn.init.trunc_normal_(linear.weight, std=0.02)
    nn.init.zeros_(linear.bias)


def check_rows(x: Tensor, width: int, head: str, tokens: bool = False) -> Tensor:
    """Return features as N x C, from N x C or N x C x 1 x 1; tokens, N x T x C, stay so."""
    if x.dim() == 4 and x.shape[2:] == (1, 1):
        x = x.flatten(1)
    if x.dim() not in ((2, 3) if tokens else (2,)) or x.shape[-1] != width:
        raise ConfigError(
            f"config.MODEL.HEAD.PARAMS: a {head} for features of width {width} got features of "
            f"shape {tuple(x.shape)}; it takes N x {width}."
        )
    return x


@register_head("mlp", "mlp_fsdp")
class MLP(nn.Module):
    def __init__(
        self,
        dims: Sequence[int],
        use_bn: bool = False,
        use_relu: bool = False,
        use_dropout: bool = False,
        use_bias: bool = True,
        skip_last_layer_relu_bn: bool = True,
    ) -> None:
        """
        dims: widths; the first is that of the input: [2048, 2048, 128] makes two layers.
        use_bn: batch norm after each linear layer.
        use_relu: ReLU after each linear layer and its batch norm.
        use_dropout: dropout of one half after these.
        use_bias: a bias in each linear layer.
        skip_last_layer_relu_bn: no batch norm, ReLU or dropout after the last layer.
        """
        super().__init__()
        if len(dims) < 2:
            raise ConfigError(f"dims: expected two or more widths, got {list(dims)}.")
        self.in_features = dims[0]
        relu = partial(nn.ReLU, inplace=True) if use_relu else None
        plain_last = skip_last_layer_relu_bn
        self.clf = linear_layers(dims, use_bn, relu, use_dropout, use_bias, plain_last)

    def forward(self, x: Tensor) -> Tensor:
        """N x C, or N x C x 1 x 1."""
        x = check_rows(x, self.in_features, "head")
        for layer in self.clf:
            x = layer(x)
        return x
