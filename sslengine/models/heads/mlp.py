"""Heads of linear layers, each optionally followed by batch norm, an activation and dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


class WeightNormLinear(nn.Module):
    """A linear layer whose rows are of a direction and a length: w_k = g_k * v_k / |v_k|, no bias.

    Lengths start at 1, and stay 1 if they are not learnt. The parameters have the names of torch's
    old `weight_norm`, as in VISSL's checkpoints, whose version cannot be deep-copied.
    """

    def __init__(self, in_features: int, out_features: int, learn_lengths: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight_g = nn.Parameter(torch.ones(out_features, 1), requires_grad=learn_lengths)
        self.weight_v = nn.Parameter(torch.empty(out_features, in_features))
        nn.init.kaiming_uniform_(self.weight_v, a=math.sqrt(5))  # as nn.Linear

    @property
    def weight(self) -> Tensor:
        length = torch.linalg.vector_norm(self.weight_v, dim=1, keepdim=True)
        weight: Tensor = self.weight_v * (self.weight_g / length)
        return weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


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


@register_head("predictor_head")
class PredictorHead(nn.Module):
    """Return [projection, prediction], both N x dims[-1]."""

    predicts = True  # False: return the projection alone, for a teacher

    def __init__(
        self,
        dims: Sequence[int],
        predictor_dims: Sequence[int],
        use_bn: bool = True,
        use_bn_on_projection: bool = False,
        use_bias_before_bn: bool = True,
        use_bias_on_last: bool = True,
    ) -> None:
        """
        dims: widths of the projector; the first is that of the feature.
        predictor_dims: widths of the predictor; first and last are that of the projection.
        use_bn: batch norm before the ReLU of each hidden layer.
        use_bn_on_projection: batch norm without weights after the projector's last layer.
        use_bias_before_bn: a bias in layers that a batch norm follows (the norm cancels it).
        use_bias_on_last: a bias in the last layers of projector and predictor.
        """
        super().__init__()
        mlp = MLP(dims, use_bn=use_bn, use_relu=True)
        self.projector = nn.Sequential(mlp)
        self.predictor = MLP(predictor_dims, use_bn=use_bn, use_relu=True)
        width = dims[-1]
        if (predictor_dims[0], predictor_dims[-1]) != (width, width):
            raise ConfigError(
                f"predictor_dims: expected {width} first and last, the width of the projection, "
                f"got {list(predictor_dims)}."
            )
        if use_bn_on_projection:
            self.projector.append(nn.BatchNorm1d(width, affine=False))
        _drop_biases(
            mlp,
            use_bn and not use_bias_before_bn,
            not (use_bias_before_bn if use_bn_on_projection else use_bias_on_last),
        )
        _drop_biases(self.predictor, use_bn and not use_bias_before_bn, not use_bias_on_last)

    def forward(self, x: Tensor) -> list[Tensor]:
        """N x C, or N x C x 1 x 1."""
        projection = self.projector(x)
        return [projection, self.predictor(projection)] if self.predicts else [projection]


def _drop_biases(mlp: MLP, hidden: bool, last: bool) -> None:
    """Remove the biases of the hidden layers and of the last layer, where the flag is set."""
    *before, end = (layer for layer in mlp.clf if isinstance(layer, nn.Linear))
    for layer in (*(before if hidden else ()), *((end,) if last else ())):
        layer.register_parameter("bias", None)


@register_head("eval_mlp", "eval_mlp_fsdp")
class EvalMLP(nn.Module):
    """Evaluates a feature map: batch norm over channels, flatten, linear layers."""

    def __init__(
        self,
        in_channels: int,
        dims: Sequence[int],
        use_bn: bool = False,
        use_relu: bool = False,
    ) -> None:
        """
        in_channels: channels of the feature.
        dims: widths of the linear layers; the first is that of the flattened feature.
        use_bn: batch norm after each linear layer but the last.
        use_relu: ReLU after each linear layer but the last.
        """
        super().__init__()
        self.channel_bn = nn.BatchNorm2d(in_channels)
        self.clf = MLP(dims, use_bn=use_bn, use_relu=use_relu)

    def forward(self, x: Tensor) -> Tensor:
        """N x C x H x W, or N x C."""
        if x.dim() == 2:
            x = x[:, :, None, None]
        if x.dim() != 4 or x.shape[1] != self.channel_bn.num_features:
            raise ConfigError(
                f"config.MODEL.HEAD.PARAMS: eval_mlp with in_channels "
                f"{self.channel_bn.num_features} got features of shape {tuple(x.shape)}."
            )
        out: Tensor = self.clf(self.channel_bn(x).flatten(1))
        return out


@register_head("siamese_concat_view")
class SiameseConcatView(nn.Module):
    """Joins the features of an image's patches, which are consecutive rows.

    (N * towers) x C becomes N x (towers * C).
    """

    def __init__(self, num_towers: int) -> None:
        """num_towers: patches of an image."""
        super().__init__()
        self.num_towers = num_towers

    def forward(self, x: Tensor) -> Tensor:
        images, rest = divmod(x.shape[0], self.num_towers)
        if rest:
            raise ConfigError(
                f"config.MODEL.HEAD.PARAMS: siamese_concat_view joins {self.num_towers} rows per "
                f"image and got {x.shape[0]} rows; num_towers must be the number of patches."
            )
        return x.reshape(images, -1)


@register_head("identity")
class Identity(nn.Identity):
    """No head: the feature itself."""

    def __init__(self) -> None:
        super().__init__()
