"""NNCLR: an image is told from others by its nearest neighbour among images seen before.

Dwibedi et al., With a Little Help from My Friends, 2021. With z the projections of two views,
p = predictor(z), nn(z) the row of the queue nearest to z, all of unit length:

    loss = CE(nn(z1) . p2 / T) / 2 + CE(nn(z2) . p1 / T) / 2

over the global batch; behind its use the queue takes the step's z1.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

import sslengine as ssl


class NNCLR(ssl.Method):
    def __init__(
        self, trunk: ssl.ViewTrunk, dim: int = 256, hidden: int = 4096, rows: int = 98304,
        temperature: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.trunk, self.temperature = trunk, temperature
        self.projector = ssl.mlp(trunk.width, hidden, dim)
        self.predictor = ssl.mlp(dim, hidden, dim)
        self.queue = ssl.Queue(rows, dim)

    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        projection = self.projector(self.trunk(batch.views))
        z = F.normalize(projection.detach(), dim=-1)
        cosines, nearest = (z @ self.queue.rows.T).max(dim=-1)
        step.put("cosine_of_neighbours", cosines.mean())
        everyone, start = ssl.gather(F.normalize(self.predictor(projection), dim=-1), dim=1)
        logits = self.queue.rows[nearest] @ everyone.flip(0).mT / self.temperature
        self.queue.push(z[0], step)
        own = torch.arange(start, start + z.shape[1], device=z.device)
        return F.cross_entropy(logits.flatten(0, 1), own.repeat(2))
