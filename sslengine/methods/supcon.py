"""SupCon: SimCLR with labels: views of all images of a class attract.

Khosla et al., Supervised Contrastive Learning, 2020, equation 2. Over all views i of the images of
the global batch, with P(i) the other views of images with the label of i:

    loss = mean over i and over p in P(i) of -log( exp(s_ip / T) / sum_{k != i} exp(s_ik / T) )

s: cosine similarity; each i counts once. The authors' code multiplies it by T / 0.07.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.methods.toolbox import Batch, Method, Step, ViewTrunk, gather, mlp
from sslengine.registry import register_loss


@register_loss("supcon", several_views=True, labels=True)
class SupCon(Method):
    def __init__(
        self, trunk: ViewTrunk, dim: int = 128, hidden: int = 2048, temperature: float = 0.1
    ) -> None:
        """
        dim, hidden: widths of the embeddings and of the hidden layer.
        temperature: the similarities are divided by it.
        """
        super().__init__()
        self.trunk, self.temperature = trunk, temperature
        self.head = mlp(trunk.width, hidden, dim, norm=False)

    def forward(self, batch: Batch, step: Step) -> Tensor:
        z = F.normalize(self.head(self.trunk(batch.views)), dim=-1)
        everyone, start = gather(z, dim=1)
        labels, (views, images) = gather(batch.labels).rows, z.shape[:2]
        numbers = torch.arange(everyone.shape[0] * everyone.shape[1], device=z.device)
        itself = numbers.view(views, -1)[:, start : start + images].reshape(-1, 1)
        logits = z.flatten(0, 1) @ everyone.flatten(0, 1).T / self.temperature
        log_p = logits.scatter(1, itself, -math.inf).log_softmax(dim=1)
        same = (batch.labels.unsqueeze(1) == labels).repeat(views, views).scatter(1, itself, False)
        losses: Tensor = -log_p.masked_fill(~same, 0).sum(dim=1) / same.sum(dim=1)
        return losses.mean()
