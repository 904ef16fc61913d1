"""DenseCL: MoCo for whole views, and for each place of a feature map.

Wang et al., Dense Contrastive Learning for Self-Supervised Visual Pre-Training, 2021. With q, k
the projections of two views by the model and by its momentum copy, q_l, k_l those of places, all of
unit length, and m(l) the place of the second view whose feature is most like that of place l:

    loss = (1 - dense) * CE(q; k, queue) + dense * mean over l of CE(q_l; k_m(l), other queue)
    CE(q; k, queue) = -log( exp(q k / T) / (exp(q k / T) + sum over its rows r of exp(q r / T)) )

After their use the queues take the step's k, and the means of its k_l before the norm, normed.
With match: position, m(l) is the place nearest in the image, from the crops' `box`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.methods.toolbox import EMA, Batch, Method, Queue, Step, ViewTrunk, mlp
from sslengine.methods.vicregl import match_nearest, place_cells
from sslengine.registry import register_loss


class DenseEncoder(nn.Module):
    """A trunk's map, and projections of its mean and of its places."""

    def __init__(self, trunk: ViewTrunk, name: str, hidden: int, dim: int) -> None:
        super().__init__()
        self.trunk, self.name = trunk, name
        self.whole = mlp(trunk.width, hidden, dim, norm=False)
        self.places = mlp(trunk.width, hidden, dim, norm=False)

    def forward(self, view: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        feature_map = self.trunk([view], maps=[self.name])[self.name][0]
        cells = feature_map.flatten(2).mT
        return feature_map, self.whole(cells.mean(dim=1)), self.places(cells)


@register_loss("densecl", views=2)
class DenseCL(Method):
    def __init__(
        self, trunk: ViewTrunk, map: str = "res5", dim: int = 128, hidden: int = 2048,
        rows: int = 65536, temperature: float = 0.2, momentum: float = 0.999, dense: float = 0.5,
        match: Literal["feature", "position"] = "feature",
    ) -> None:  # fmt: skip
        """
        map: the trunk's feature map.
        dim, hidden: widths of the embeddings and of hidden layers.
        rows: the length of each queue.
        temperature: the similarities are divided by it.
        momentum: the copy's, which does not change.
        dense: the weight of places; the rest is that of whole views.
        match: which place of the other view belongs to a place; position needs
            RandomResizedCropWithBox among the transforms.
        """
        super().__init__()
        self.encoder = DenseEncoder(trunk, map, hidden, dim)
        self.teacher = EMA(self.encoder, momentum, "constant")
        self.queue, self.queue_of_places = Queue(rows, dim), Queue(rows, dim)
        self.temperature, self.dense, self.match = temperature, dense, match

    def forward(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        first, q, q_places = self.encoder(batch.views[0])
        second, k, k_places = self.teacher(batch.views[1])
        maps, keys = (first, second), F.normalize(k_places, dim=2)
        if self.match == "position":
            at = [place_cells(box, each) for box, each in zip(batch["box"], maps)]
        else:  # of unit length, so the nearest is the most similar
            at = [F.normalize(each.flatten(2).mT, dim=2) for each in maps]
        queries, positives = match_nearest(F.normalize(q_places, dim=2), keys, at[0], at[1])
        q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
        whole = self._contrast(q, k, self.queue)
        places = self._contrast(
            queries.flatten(0, 1), positives.flatten(0, 1), self.queue_of_places
        )
        self.queue.push(k, step)
        self.queue_of_places.push(F.normalize(k_places.mean(dim=1), dim=1), step)
        loss = (1 - self.dense) * whole + self.dense * places
        return {"loss": loss, "whole": whole, "places": places}

    def _contrast(self, queries: Tensor, keys: Tensor, queue: Queue) -> Tensor:
        positive = (queries * keys).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, queries @ queue.rows.T], dim=1) / self.temperature
        return F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long))
