"""`DISTRIBUTED.DETECT_ANOMALOUS_PARAMS`: name the parameters that get no gradient.

DDP waits for the gradient of every parameter, and its error does not name the missing ones.
Cost: a call for each parameter and module in each step.
"""

from __future__ import annotations

import logging
from typing import Any

from sslengine.errors import listing
from sslengine.hooks.events import Hook, TaskView

log = logging.getLogger("sslengine")


class ReportUnreachedParameters(Hook):
    """Every rank logs each set of such parameters once."""

    def __init__(self) -> None:
        self._reached: set[str] = set()
        self._used: set[str] = set()
        self._reported: frozenset[str] = frozenset()
        self._handles: list[Any] = []

    def on_start(self, task: TaskView) -> None:
        for name, module in task.learner.named_modules():
            own = [
                (f"{name}.{each}" if name else each, parameter)
                for each, parameter in module.named_parameters(recurse=False)
                if parameter.requires_grad
            ]
            for full, parameter in own:
                arrived = parameter.register_post_accumulate_grad_hook(
                    lambda _, full=full: self._reached.add(full)
                )
                self._handles.append(arrived)
            if own:
                names = [full for full, _ in own]
                self._handles.append(
                    module.register_forward_pre_hook(
                        lambda *_, names=names: self._used.update(names)
                    )
                )

    def on_backward(self, task: TaskView) -> None:
        if not task.updating:
            return
        names = {n for n, p in task.learner.named_parameters() if p.requires_grad}
        missing = frozenset(names - self._reached)
        if missing - self._reported:
            log.warning("%s", self._message(task, missing))
            self._reported |= missing
        self._reached.clear()
        self._used.clear()

    def on_end(self, task: TaskView) -> None:
        self._remove()

    def on_exception(self, task: TaskView) -> None:
        self._remove()

    def _message(self, task: TaskView, missing: frozenset[str]) -> str:
        used, unused = sorted(missing & self._used), sorted(missing - self._used)
        text = f"step {task.iteration}: {len(missing)} parameters get no gradient from the loss."
        if unused:
            text += f"\n  Their modules are not called in the forward pass: {listing(unused, 50)}."
        if used:
            text += f"\n  Called, but the loss does not depend on them: {listing(used, 50)}."
        return (
            f"{text}\n  Freeze or remove them, or let DDP look for them in each step: "
            f"config.DISTRIBUTED.FIND_UNUSED_PARAMETERS=true."
        )

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
