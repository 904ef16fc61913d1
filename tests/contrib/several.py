"""Toys with several losses, and what drives them without the engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NAME = "multi_optimizer_train_step"


class Gan(nn.Module):
    """A generator and a critic, and a trunk that both use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(3, 5)
        self.generator = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        self.critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.double()

    def forward(self, images: Tensor) -> list[Tensor]:
        made = self.generator(torch.tanh(self.trunk(images)))
        return [made, self.critic(made), self.critic(images + 0.1 * self.trunk(images)[:, :3])]


class GanLoss(nn.Module):
    """With a parameter of its own: the temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, output: list[Tensor], target: Any) -> dict[str, Tensor]:
        made, of_made, of_real = output
        return {
            "fool": F.softplus(-of_made / self.temperature).mean(),
            "critic": (F.softplus(of_made) + F.softplus(-of_real)).mean(),
            "size": made.square().mean(),
        }


class TwoLosses(nn.Module):
    """For whole runs: on the embeddings of the recipe's model."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, output: Tensor, target: Any) -> dict[str, Tensor]:
        return {
            "near": (self.scale * output - 0.3).square().mean(),
            "far": F.softplus(-output.square().sum(1)).mean(),
        }


def constant(value: float) -> dict[str, Any]:
    return {"lr": {"name": "constant", "value": value}}


def of_run(**changes: Any) -> dict[str, Any]:
    """Changes to the recipe: two optimizers, of which both own the trunk."""
    falling = {"name": "cosine", "start_value": 0.05, "end_value": 0.0, "update_interval": "step"}
    optimizers = {
        "slow": {"parameters": ["trunk.*"], "losses": ["near"], "name": "sgd",
                 "param_schedulers": {"lr": falling}},
        "fast": {"parameters": ["trunk.*", "heads.*", "loss.*"], "losses": ["near", "far"],
                 "name": "adam", "param_schedulers": constant(0.01), "clip_norm": 0.5},
    }  # fmt: skip
    return {
        "LOSS__name": "tests.contrib.several:TwoLosses", "TRAINER__TRAIN_STEP_NAME": NAME,
        f"TRAINER__{NAME}__OPTIMIZERS": optimizers, **changes,
    }  # fmt: skip
