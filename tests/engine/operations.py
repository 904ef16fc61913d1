"""The operations that a step launches: views and memory that is only reserved do not count.

One of torch's fused or foreach operations counts one, whatever the number of its tensors.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sslengine.config.resolve import resolve
from sslengine.engine.services import Services
from sslengine.engine.task import SelfSupervisionTask
from tests.integration.test_configs import TWO_STEPS
from tests.teachers import needed
from tools.perf_measurement.by_hand import Begun

_RESERVES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.made: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        returned = [each.alias_info for each in func._schema.returns]
        views = any(alias is not None and not alias.is_write for alias in returned)
        if not views and name not in _RESERVES and func.namespace != "profiler":
            self.made[name] += 1
        return func(*args, **(kwargs or {}))


class Case(Begun):
    """A quickstart run before its second step, with the batch of that step."""

    def __init__(self, name: str, folder: Path, *changes: str) -> None:
        often = "config.LOG_FREQUENCY=1000"
        run = resolve([f"config=quickstart/{name}", *TWO_STEPS, often, *needed(name), *changes])
        cpu = torch.device("cpu")
        self.task = SelfSupervisionTask(run.config, folder, cpu, hooks=[], services=Services())
        self.begin()
        self.task.step()
        self.batch: dict[str, Any] = self.task.state.next_batch()

    def of_engine(self) -> Counter[str]:
        self.task.state.next_batch = lambda: self.batch  # type: ignore[method-assign]
        return self._count(self.task.step)

    def loss_by_hand(
        self, compute: Callable[[Any, dict[str, Any]], Tensor], after: Iterable[Callable[[], None]]
    ) -> tuple[Tensor, Counter[str]]:
        """A bare loop's step with the same model and optimizer, which are put back afterwards."""
        model, optimizer = self.task.base_model, self.task.optimizer.inner
        parts = (model, self.loss, optimizer)
        states = copy.deepcopy([each.state_dict() for each in parts])
        batch = {key: values[0] for key, values in self.batch.items()}
        losses: list[Tensor] = []

        def step() -> None:
            loss = compute(model, batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for each in after:
                each()
            losses.append(loss.detach())

        made = self._count(step)
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        return losses[0], made

    def _count(self, step: Callable[[], Any]) -> Counter[str]:
        torch.manual_seed(0)
        with Operations() as operations:
            step()
        return operations.made
