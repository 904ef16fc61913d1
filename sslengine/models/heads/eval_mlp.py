"""A head that evaluates a feature map: batch norm over channels, flatten, linear layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.models.heads.mlp import MLP
from sslengine.registry import register_head


@register_head("eval_mlp", "eval_mlp_fsdp")
class EvalMLP(nn.Module):
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
