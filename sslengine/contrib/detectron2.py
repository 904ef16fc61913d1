"""Run hooks written for detectron2's trainer unchanged.

    before_train      on_start             after_train    on_end, or on_exception: always once
    before_step       on_step_start        after_step     on_step         only in train steps
    after_backward    on_backward

`self.trainer` has iter, start_iter, max_iter, storage, model, optimizer and cfg. As in
detectron2, `iter` counts from 0, is the same in all calls of a step, and is max_iter in
after_train of a complete run. The state is in checkpoints and is loaded before before_train.
"""

from __future__ import annotations

from typing import Any

from sslengine.contrib.detectron2_storage import StorageView
from sslengine.errors import listing
from sslengine.hooks.events import Hook, TaskView
from sslengine.registry import register_hook_adapter

CALLS = ("before_train", "after_train", "before_step", "after_backward", "after_step")
NAMES = ("iter", "start_iter", "max_iter", "storage", "model", "optimizer", "cfg")


class TrainerView:
    """`self.trainer` of a detectron2 hook."""

    def __init__(self, task: TaskView) -> None:
        self.iter = self.start_iter = task.iteration
        self.max_iter = sum(phase.own_steps for phase in task.phases if phase.train)
        self.model = task.model
        self.optimizer = task.optimizer.inner
        self.cfg = task.config
        self.storage = StorageView(task.storage, lambda: self.iter)

    def __getattr__(self, name: str) -> Any:
        if name == "data_loader":
            text = "a feed has one iteration at a time, which training uses"
        else:
            text = f"available are {listing(NAMES)}"
        raise AttributeError(f"self.trainer.{name} is not available to a hook in sslengine: {text}")


class Detectron2Hook(Hook):
    """Wraps a detectron2 hook. `config.HOOKS.EXTRA` wraps such hooks automatically."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self._trainer: TrainerView | None = None
        self._loaded: dict[str, Any] | None = None  # until there is a trainer
        self._ended = False

    @property
    def name(self) -> str:
        return type(self.hook).__qualname__

    def on_start(self, task: TaskView) -> None:
        self._trainer = self.hook.trainer = TrainerView(task)
        if self._loaded is not None:
            self.hook.load_state_dict(self._loaded)
        self._call("before_train")

    def on_step_start(self, task: TaskView) -> None:
        if task.train and self._trainer is not None:
            self._trainer.iter = task.iteration
            self._call("before_step")

    def on_backward(self, task: TaskView) -> None:
        self._call("after_backward")

    def on_step(self, task: TaskView) -> None:
        if task.train:
            self._call("after_step")

    def on_end(self, task: TaskView) -> None:
        if self._trainer is not None:
            self._trainer.iter = task.iteration
        self._end()

    def on_exception(self, task: TaskView) -> None:
        self._end()

    def _end(self) -> None:
        if self._trainer is not None and not self._ended:
            self._ended = True  # set first: after_train is not called again for its own error
            self._call("after_train")

    def _call(self, name: str) -> None:
        call = getattr(self.hook, name, None)
        if call is not None:
            call()

    def state_dict(self) -> dict[str, Any]:
        get = getattr(self.hook, "state_dict", None)
        return dict(get() or {}) if get is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state


@register_hook_adapter("detectron2")
def adapted(hook: Any) -> Detectron2Hook | None:
    return Detectron2Hook(hook) if any(hasattr(hook, name) for name in CALLS) else None
