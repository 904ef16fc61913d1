"""A model written for mmengine, with nothing of this engine."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.model import BaseModel
from torch import nn


class Toy(BaseModel):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * 8 * 8, 16), nn.ReLU(), nn.Linear(16, 1)
        )

    def forward(self, imgs: Any, labels: Any = None, mode: str = "tensor") -> Any:
        scores = self.net(imgs).squeeze(1)
        if mode != "loss":
            return scores
        wanted = labels.float() / 16
        return {
            "loss_square": (scores - wanted).square(),
            "loss_size": [0.01 * scores.abs(), 0.01 * scores.square()],
            "error": (scores - wanted).abs(),
        }
