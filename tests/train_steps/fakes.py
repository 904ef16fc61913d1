"""A task with nothing but what the stages of a step use."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn, optim

from sslengine.methods.step import Step
from sslengine.monitor.loss_ledger import LossLedger
from sslengine.monitor.perf import PerfStats
from sslengine.precision import Precision
from sslengine.task.last_batch import LastBatch
from sslengine.task.progress import ALONE, Group, Progress


class FakeTask:
    def __init__(self, batches: list[Any], model: nn.Module, loss: Callable[..., Any]) -> None:
        self.batches = iter(batches)
        self.base_model = self.model = self.learner = model
        self.loss = loss
        inner = optim.SGD(model.parameters(), lr=0.1)
        self.wheres: list[float] = []
        self.optimizer = SimpleNamespace(
            inner=inner,
            zero_grad=inner.zero_grad,
            schedule=self.wheres.append,
            step=lambda precision: precision.step(inner),
        )
        self.precision = Precision()
        self.ledger = LossLedger()
        self.perf = PerfStats()
        self.group: Group = ALONE
        self.last_batch = LastBatch()
        self.progress = Progress()
        self.train, self.test_only = True, False
        self.reduce_by_hand = self.broadcast_buffers_by_hand = False
        self.reduced_by_hand: nn.Module | None = None
        self.loss_takes_sample = False
        self.method_step = Step(self)
        self.after_backward = self.after_update = ()
        self.active_meters: list[Any] = []
        self.input_keys, self.target_keys = ["data"], ["label"]
        self.where = 0.25
        self.events: list[str] = []
        self.on_event: dict[str, Callable[[FakeTask], None]] = {}

    def next_batch(self) -> Any:
        self.last_batch.size, self.last_batch.share = 4, 1.0
        return next(self.batches)

    def run_hooks(self, event: str) -> None:
        self.events.append(event)
        self.on_event.get(event, lambda task: None)(self)


def make_batch(seed: int = 0) -> dict[str, list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "data": [torch.randn(4, 3, generator=generator)],
        "label": [torch.randint(2, (4,), generator=generator)],
        "data_idx": [torch.arange(4)],
        "data_valid": [torch.ones(4)],
    }


class ListModel(nn.Module):
    """As the engine's model: a list of outputs."""

    def __init__(self, inputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(inputs, 2)

    def forward(self, batch: Any) -> list[Tensor]:
        if isinstance(batch, dict):
            batch = torch.cat(list(batch.values()), dim=1)
        return [self.linear(batch)]
