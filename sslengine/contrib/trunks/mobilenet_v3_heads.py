"""The classifier of MobileNet v3: a wide layer, hard swish, dropout, a linear layer.

torchvision's and timm's differ only in the names and shapes of their weights.
"""

from __future__ import annotations

from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.registry import register_head


@register_head("mobilenet_v3_head")
class MobileNetV3Head(nn.Module):
    def __init__(
        self,
        in_channels: int = 960,
        mid_channels: int = 1280,
        num_classes: int = 1000,
        drop_out: float = 0.2,
        with_bn: bool = False,
    ) -> None:
        """
        in_channels: width of the feature.
        mid_channels: width of the wide layer.
        num_classes: width of the output.
        drop_out: probability with which a value of the wide layer is dropped.
        with_bn: a batch norm before the wide layer.
        """
        super().__init__()
        self.in_channels = in_channels
        self.channel_bn = nn.BatchNorm2d(in_channels) if with_bn else nn.Identity()
        self.classifier = nn.Sequential(
            *self.make_wide_layer(in_channels, mid_channels),
            nn.Dropout(drop_out),
            nn.Linear(mid_channels, num_classes),
        )
        for layer in self.classifier:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)

    def make_wide_layer(self, inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Linear(inputs, outputs), nn.Hardswish()]

    def forward(self, x: Tensor) -> Tensor:
        """N x C, or N x C x 1 x 1."""
        x = x[:, :, None, None] if x.dim() == 2 else x
        if x.shape[1:] != (self.in_channels, 1, 1):
            raise ConfigError(
                f"config.MODEL.HEAD.PARAMS: a MobileNet head with in_channels {self.in_channels} "
                f"got features of shape {tuple(x.shape)}; it takes N x {self.in_channels}."
            )
        x = self.channel_bn(x)
        flat = isinstance(self.classifier[0], nn.Linear)
        out: Tensor = self.classifier(x.flatten(1) if flat else x)
        return out


@register_head("mobilenet_v3_head_timm")
class TimmMobileNetV3Head(MobileNetV3Head):
    def make_wide_layer(self, inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, kernel_size=1), nn.Hardswish(), nn.Flatten()]
