"""Real tasks around a model, a loss and batches of a test's own, at the start of a phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.hooks.events import Hook
from sslengine.methods.foreign import FunctionLoss
from sslengine.python.fit import GivenParts, PythonTask
from tests.config.recipes import resolved
from tests.engine.runs import CPU


class Seen(Hook):
    """The events of the steps in order, and what each recorded of its loss."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.parts: list[dict[str, float]] = []

    def on_forward(self, task: Any) -> None:
        self.events.append("on_forward")

    def on_loss_and_meter(self, task: Any) -> None:
        self.events.append("on_loss_and_meter")

    def on_backward(self, task: Any) -> None:
        self.events.append("on_backward")

    def on_update(self, task: Any) -> None:
        self.events.append("on_update")

    def on_step(self, task: Any) -> None:
        self.parts += [entry.parts for entry in task.storage.take_losses()]


def at(event: str, function: Callable[[Any], None]) -> Hook:
    """A hook that calls the function at this event."""
    hook: Hook = type("At", (Hook,), {event: lambda self, task: function(task)})()
    return hook


def begin(*args: Any, **kwargs: Any) -> PythonTask:
    """`task.step()` makes the first step of what `make` makes."""
    task = make(*args, **kwargs)
    task.on_start()
    task.start_phase()
    task.on_phase_start()
    return task


def make(
    batches: Sequence[Any],
    model: nn.Module,
    loss: Callable[..., Any] | None,
    *hooks: Any,
    test: bool = False,
    validation: Sequence[Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **changes: Any,
) -> PythonTask:
    """By plain SGD of rate 0.1 unless `changes` say more.

    loss None: the model gives its losses itself. test: the run only tests. validation: the batches
    of a test phase after each train phase.
    """
    changes |= {"TEST_ONLY": test, "TEST_MODEL": test or validation is not None}
    if loss is None:
        changes["LOSS__name"] = ""
    if optimizer is None and not test and "multi_optimizer" not in str(changes):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quiet = {"LOG_FREQUENCY": 10**6, "HOOKS__COLLAPSE_SIGNS": False}
    config = resolved(**{**quiet, **changes}).config
    given = loss if isinstance(loss, nn.Module) else FunctionLoss(loss) if loss else nn.Module()
    data = {"TRAIN": list(batches), "TEST": list(batches if test else validation or ())}
    objects = GivenParts(model, given, optimizer, data, {"batch_size": 0}, hooks)
    task = PythonTask(config, None, CPU, objects)
    task.prepare()
    return task


def make_batch(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "data": torch.randn(4, 3, generator=generator),
        "label": torch.randint(2, (4,), generator=generator),
        "data_idx": torch.arange(4),
        "data_valid": torch.ones(4),
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
