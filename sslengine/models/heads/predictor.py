"""A projector and a predictor, for methods that predict one view from the other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.models.heads.mlp import MLP
from sslengine.registry import register_head


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
