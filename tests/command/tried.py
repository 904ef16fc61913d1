"""Methods for `sslengine try`: one that is right, and one for each mistake."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sslengine as ssl


class Sound(ssl.Method):
    def __init__(self, trunk: ssl.ViewTrunk, dim: int = 8, temperature: float = 0.5):
        super().__init__()
        self.trunk, self.temperature = trunk, temperature
        self.head = ssl.mlp(trunk.width, 16, dim)
        self.teacher = ssl.EMA(self.head, 0.9)

    def project(self, batch: ssl.Batch) -> Tensor:
        return F.normalize(self.head(self.trunk(batch.views)), dim=-1)

    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        z = self.project(batch)
        everyone, start = ssl.gather(z, dim=1)
        return ssl.info_nce(z, everyone, start, self.temperature)


class Unused(Sound):
    def __init__(self, trunk: ssl.ViewTrunk) -> None:
        super().__init__(trunk)
        self.spare = nn.Linear(4, 4)


class Detached(Sound):
    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        z = self.project(batch)
        return super().forward(batch, step).detach() + 0.0 * z.sum()


class Counts(Sound):
    def __init__(self, trunk: ssl.ViewTrunk) -> None:
        super().__init__(trunk)
        self.calls = 0

    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        self.calls += 1
        return super().forward(batch, step)


class Raises(Sound):
    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        z = self.project(batch)
        return (z @ z).mean()  # images x width with images x width


class WrongAxis(Sound):
    def __init__(self, trunk: ssl.ViewTrunk) -> None:
        super().__init__(trunk)
        self.norm = nn.BatchNorm1d(trunk.width)

    def project(self, batch: ssl.Batch) -> Tensor:
        return F.normalize(self.head(self.norm(self.trunk(batch.views))), dim=-1)


class OfOneRank(Sound):
    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        z = self.project(batch)
        return ssl.info_nce(z, z, 0, self.temperature)


class RaisesOnRanks(Sound):
    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        if torch.distributed.is_initialized():
            raise ValueError("there are several")
        return super().forward(batch, step)
