"""NNCLR: recognise an image by its nearest neighbour among images seen before.

Dwibedi et al., With a Little Help from My Friends, 2021. With z the projections of two views,
p = predictor(z), nn(z) the row of the queue nearest to z, all of unit length:

    loss = CE(nn(z1) . p2 / T) / 2 + CE(nn(z2) . p1 / T) / 2

over the images of the global batch; after its use the queue takes the step's z1.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.methods import toolbox as ssl
from sslengine.registry import register_loss


@register_loss("nnclr", views=2)
class NNCLR(ssl.Method):
    def __init__(
        self, trunk: ssl.ViewTrunk, dim: int = 256, hidden: int = 2048,
        predictor_hidden: int = 4096, rows: int = 98304, temperature: float = 0.1,
    ) -> None:  # fmt: skip
        """
        dim, hidden, predictor_hidden: widths of the embeddings, and of hidden layers.
        rows: the length of the queue.
        temperature: the similarities are divided by it.
        """
        super().__init__()
        last = nn.BatchNorm1d(dim)
        self.projector = nn.Sequential(trunk, ssl.mlp(trunk.width, hidden, hidden, dim, end=last))
        self.predictor = ssl.mlp(dim, predictor_hidden, dim)
        self.queue, self.temperature = ssl.Queue(rows, dim), temperature

    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        projections = ssl.pass_apart(self.projector, batch.views)
        predictions = ssl.pass_apart(self.predictor, projections)
        z = F.normalize(projections.detach(), dim=-1)
        cosines, nearest = (z @ self.queue.rows.T).max(dim=-1)
        step.put("cosine_of_neighbours", cosines.mean())
        everyone, start = ssl.gather(F.normalize(predictions, dim=-1), dim=1)
        loss = ssl.match_views(self.queue.rows[nearest], everyone, start, self.temperature)
        self.queue.push(z[0], step)
        return loss
