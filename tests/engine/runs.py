"""Whole small runs for tests: build a task from the recipe, train it, look at what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslengine.engine import loop
from sslengine.engine.services import Services
from sslengine.engine.task import SelfSupervisionTask
from sslengine.hooks.events import Hook
from tests.config.recipes import resolved

CPU = torch.device("cpu")


class Watch(Hook):
    """Keeps the loss and the samples of every train step, and stops the run if told to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.losses: list[float] = []
        self.samples: list[list[int]] = []
        self.stop_after = stop_after

    def on_step(self, task: Any) -> None:
        if task.train:
            self.losses.append(task.storage.take_losses()[-1].parts["loss"])
            self.samples.append(task.last_batch.indices.tolist())
            if task.iteration == self.stop_after:
                raise Stop


class Stop(Exception):
    """Raised in the middle of a run, as a power cut would."""


class Record(Hook):
    """The events of a run, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []


def _note(event: str) -> Any:
    def method(self: Record, task: Any) -> None:
        self.events.append(f"{'train' if task.train else 'test'} {event} {task.iteration}")

    return method


for _event in (
    "on_start", "on_phase_start", "on_step_start", "on_forward", "on_loss_and_meter", "on_backward", "on_update",
    "on_step", "on_phase_end", "on_end", "on_exception",
):  # fmt: skip
    setattr(Record, _event, _note(_event))


def make_task(
    folder: Path, hooks: list[Any] | None = None, services: Services | None = None, **changes: Any
) -> SelfSupervisionTask:
    """With hooks, and without services, nothing is written and nothing saved."""
    config = resolved(**changes).config
    services = Services() if services is None and hooks is not None else services
    task = SelfSupervisionTask(config, folder, CPU, hooks=hooks, services=services)
    task.prepare()
    return task


def train(
    folder: Path, hooks: list[Any] | None = None, services: Services | None = None, **changes: Any
) -> SelfSupervisionTask:
    task = make_task(folder, hooks, services, **changes)
    loop.run(task)
    return task


def weights(task: SelfSupervisionTask) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in task.base_model.state_dict().items()}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
