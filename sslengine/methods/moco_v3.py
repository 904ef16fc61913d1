"""MoCo v3: recognise the other view of an image, encoded by a momentum copy, in the batch.

Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021,
Algorithm 1. With q the predictions of both views and k the copy's projections, of unit length:

    loss = 2 T * (CE(q1 . k2 / T) + CE(q2 . k1 / T)) over the images of the global batch

Each view passes the networks as a separate batch.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.methods import toolbox as ssl
from sslengine.registry import register_loss


@register_loss("moco_v3", views=2)
class MoCoV3(ssl.Method):
    def __init__(
        self, trunk: ssl.ViewTrunk, dim: int = 256, hidden: int = 4096, layers: int = 2,
        temperature: float = 1.0, momentum: float = 0.99, predictor_norm: bool = False,
    ) -> None:  # fmt: skip
        """
        dim, hidden: widths of the embeddings and of hidden layers.
        layers: of the projector; the publication has 2 for a ResNet, 3 for a vision transformer.
        temperature: the similarities are divided by it; 0.2 for a vision transformer.
        momentum: the copy's at the start; it rises to 1.
        predictor_norm: the predictor too ends with a batch norm, as for a vision transformer.
        """
        super().__init__()
        widths = [trunk.width, *[hidden] * (layers - 1), dim]
        self.encoder = nn.Sequential(trunk, ssl.mlp(*widths, end=nn.BatchNorm1d(dim, affine=False)))
        last = nn.BatchNorm1d(dim, affine=False) if predictor_norm else nn.Identity()
        self.predictor = ssl.mlp(dim, hidden, dim, end=last)
        self.teacher = ssl.EMA(self.encoder, momentum)
        self.temperature = temperature

    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        queries = ssl.pass_apart(self.predictor, ssl.pass_apart(self.encoder, batch.views))
        keys, start = ssl.gather(
            F.normalize(ssl.pass_apart(self.teacher, batch.views), dim=-1), dim=1
        )
        loss = ssl.match_views(F.normalize(queries, dim=-1), keys, start, self.temperature)
        return 4 * self.temperature * loss
