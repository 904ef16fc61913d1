"""What `sslengine try` does with a method: one batch, a short run, a kill, two ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sslengine.engine.state import shapes
from sslengine.hooks.events import Hook
from sslengine.models.view_trunk import parameters_with_trunk
from sslengine.testing.component_suites import MethodSuite
from sslengine.testing.promises import expect
from sslengine.testing.run_suite import EXACT, PLAIN
from sslengine.testing.runs import SAVED_AT, run
from sslengine.testing.state import copied

STEPS = 25
# Adam moves each parameter that has a gradient, however small, and no other.
ADAM = {
    **EXACT, **PLAIN, "OPTIMIZER.name": "adamw", "OPTIMIZER.weight_decay": 0.0,
    "OPTIMIZER.num_iterations": 2 * SAVED_AT,
    "OPTIMIZER.param_schedulers.lr": {"name": "constant", "value": 1e-3},
    "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP": [], "MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP": [],
}  # fmt: skip
# Of the fall, as a share of the first loss: less is rounding.
FALL = 1e-3
# How deep modules are listed.
DEPTH = 2

# A module's name, the shape of its output, the number of its parameters, and whether they train.
Row = tuple[str, str, str, str]


class SameBatch(Hook):
    """Make the loss a function of the parameters alone: batch, random numbers, and the method's
    teacher, queue and other state are those of the first step."""

    def on_start(self, task: Any) -> None:
        read, kept = task.state.next_batch, list[Any]()

        def read_first() -> Any:
            kept.append(read())
            for seed in (torch.manual_seed, np.random.seed, random.seed):
                seed(0)
            return kept[0]

        task.state.next_batch = read_first
        self._state = copied(_state_of(task.loss))

    def on_update(self, task: Any) -> None:
        with torch.no_grad():
            for name, each in _state_of(task.loss).items():
                each.copy_(self._state[name])


def _state_of(method: nn.Module) -> dict[str, Tensor]:
    named = (*method.named_parameters(), *method.named_buffers())
    return {name: each for name, each in named if not each.requires_grad}


class Shapes(Hook):
    """Note the shape of each module's output in the first step."""

    def __init__(self, show: Callable[[list[Row]], None]) -> None:
        self._show, self._seen = show, dict[str, str]()

    def on_start(self, task: Any) -> None:
        self._modules = {
            f"{prefix}{name}": module
            for prefix, root in (("", task.base_model), ("loss.", task.loss))
            for name, module in root.named_modules()
            if name and name.count(".") < DEPTH
        }
        self._handles = [
            module.register_forward_hook(partial(self._note, name))
            for name, module in self._modules.items()
        ]

    def _note(self, name: str, module: nn.Module, given: Any, output: Any) -> None:
        self._seen.setdefault(name, str(shapes(output)))

    def on_backward(self, task: Any) -> None:
        if self._handles:
            self.on_exception(task)

    def on_exception(self, task: Any) -> None:
        """Show what is known at the first error, or after the first step."""
        handles, self._handles = self._handles, []
        for each in handles:
            each.remove()
        if handles:
            images = task.last_batch.sample or {}
            self._show([("batch", str(shapes(images.get("input"))), "", ""), *self._rows()])

    def _rows(self) -> Iterator[Row]:
        for name, module in self._modules.items():
            parameters = [*parameters_with_trunk(module)]
            trained = {each.requires_grad for each in parameters}
            if parameters or name in self._seen:
                count = f"{sum(each.numel() for each in parameters):,}" if parameters else ""
                how = "partly trained" if len(trained) > 1 else "trained" if True in trained else ""
                yield name, self._seen.get(name, ""), count, how or ("frozen" if parameters else "")


class Trial(MethodSuite):
    """Try one method. Each step returns its result as a sentence, or raises."""

    def __init__(
        self, method: str, overrides: Sequence[str], show: Callable[[list[Row]], None]
    ) -> None:
        super().__init__(method, overrides=overrides)
        self.spec, self._show = self.spec.having(ADAM), show

    def one_batch(self) -> str:
        spec = self.spec.having({"OPTIMIZER.num_iterations": STEPS})
        losses = run(spec, self.folder / "one", hooks=[SameBatch(), Shapes(self._show)]).losses
        told = (
            f"in {STEPS} steps on one batch the loss goes from {losses[0]:.4g} to {losses[-1]:.4g}"
        )
        expect(
            losses[-1] < losses[0] - FALL * abs(losses[0]),
            f"{told}: it does not fall. Does a gradient reach all that it depends on (`detach()`, "
            f"`torch.no_grad()`, `.data`), and in the right direction?",
        )
        return told

    def parameters(self) -> str:
        self.trains_with_finite_losses()
        self.trains_every_parameter()
        return f"each of the {len(self.whole.start)} trainable parameters has a gradient"

    def state(self) -> str:
        self.resumes_bit_exactly()
        return f"killed after step {SAVED_AT} and resumed, losses, weights and state are the same"

    def two_ranks(self) -> str:
        self._expect_equal_ranks(self.compare_ranks(2), "DDP")
        return "two processes with half of the images each end where one process does"

    def steps(self) -> list[Callable[[], str]]:
        return [self.one_batch, self.parameters, self.state, self.two_ranks]
