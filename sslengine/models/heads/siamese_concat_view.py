"""Concatenate the features of an image's patches: (N * towers) x C becomes N x (towers * C)."""

from __future__ import annotations

from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.registry import register_head


@register_head("siamese_concat_view")
class SiameseConcatView(nn.Module):
    """The rows of one image must be consecutive."""

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
