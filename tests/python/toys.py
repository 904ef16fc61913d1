"""A small regression, its data, and the plain loop that trains it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

COUNT = 10  # does not divide by 4, nor by 2 x 4


class Points(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, count: int = COUNT, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 3, generator=generator, dtype=torch.float64)
        self.y = self.x.sum(1, keepdim=True).sin()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Noisy(Points):
    """As an augmentation does."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.1 * torch.randn(3, dtype=torch.float64), self.y[index]


def net(seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(3, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 1)]
        return nn.Sequential(*layers).double()


def square(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


def sgd(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **more})


def batches(points: Points, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    return list(zip(points.x.split(size), points.y.split(size)))


def plain_loop(model: nn.Module, loader: Any, optimizer: Any, epochs: int) -> list[float]:
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def same(one: nn.Module, two: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)
