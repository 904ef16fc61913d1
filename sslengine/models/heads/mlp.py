"""Linear layers, each optionally followed by batch norm, ReLU and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.registry import register_head


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
        self.clf = nn.Sequential()
        for index, (inputs, outputs) in enumerate(pairwise(dims), start=2):
            self.clf.append(nn.Linear(inputs, outputs, bias=use_bias))
            if index == len(dims) and skip_last_layer_relu_bn:
                break
            if use_bn:
                self.clf.append(nn.BatchNorm1d(outputs))
            if use_relu:
                self.clf.append(nn.ReLU(inplace=True))
            if use_dropout:
                self.clf.append(nn.Dropout())

    def forward(self, x: Tensor) -> Tensor:
        """N x C, or N x C x 1 x 1."""
        if x.dim() == 4 and x.shape[2:] == (1, 1):
            x = x.flatten(1)
        if x.dim() != 2 or x.shape[1] != self.in_features:
            raise ConfigError(
                f"config.MODEL.HEAD.PARAMS: a head with dims [{self.in_features}, ...] got "
                f"features of shape {tuple(x.shape)}; it takes N x {self.in_features}."
            )
        for layer in self.clf:
            x = layer(x)
        return x
