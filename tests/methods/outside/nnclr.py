"""NNCLR: an image is told from others by its nearest neighbour among images seen before.

Dwibedi et al., With a Little Help from My Friends, 2021. With z the projections of two views,
p = predictor(z), nn(z) the row of the queue nearest to z, all of unit length:

    loss = CE(nn(z1) . p2 / T) / 2 + CE(nn(z2) . p1 / T) / 2

over the global batch; behind its use the queue takes the step's z1, with the labels of its images.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.distributed.collectives import gather
from sslengine.methods.base import Method, Step


class NNCLR(Method):
    def __init__(
        self, dim: int = 256, hidden: int = 4096, rows: int = 98304, temperature: float = 0.1
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.predictor = nn.Sequential(
            nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)
        )
        self.register_buffer("queue", F.normalize(torch.randn(rows, dim), dim=1))
        self.register_buffer("labels", torch.full((rows,), -1))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.long))

    def forward(self, output: Tensor, sample: dict, step: Step) -> Tensor:
        z = F.normalize(output.detach(), dim=1)
        nearest = (z @ self.queue.T).argmax(dim=1)
        neighbours = self.queue[nearest]
        agree = (self.labels[nearest] == sample["target"]).float()
        step.put("neighbours_with_the_same_label", agree.mean())
        first, second = F.normalize(self.predictor(output), dim=1).chunk(2)
        to_second, to_first = neighbours.chunk(2)
        if step.train:
            self._enqueue(z.chunk(2)[0], sample["target"].chunk(2)[0])
        return (self._contrast(to_second, second) + self._contrast(to_first, first)) / 2

    def _contrast(self, neighbours: Tensor, predictions: Tensor) -> Tensor:
        candidates, start = gather(predictions)
        own = torch.arange(start, start + len(neighbours), device=candidates.device)
        return F.cross_entropy(neighbours @ candidates.T / self.temperature, own)

    def _enqueue(self, z: Tensor, labels: Tensor) -> None:
        z, labels = gather(z).rows, gather(labels).rows
        rows = (self.oldest + torch.arange(len(z), device=z.device)) % len(self.queue)
        self.queue.index_copy_(0, rows, z)
        self.labels.index_copy_(0, rows, labels)
        self.oldest.add_(len(z)).remainder_(len(self.queue))
