"""The events of a run, and the base class of hooks.

    on_start
      on_phase_start                           a train or test phase; again after a resume
        on_step_start                          every step, before its batch is read
        on_forward, on_loss_and_meter          every step
        on_backward, on_update                 train steps; on_update once per optimizer step
        on_step                                every step
      on_phase_end
    on_end
    on_exception                               when an exception is raised

A hook subclasses `Hook` and overrides the events it needs; each gets the task. The events of hooks
written for VISSL or Classy Vision (`ClassyHook`) are called as there, but many attributes of the
task are others (docs/vissl_differences.md). An event that no hook overrides costs one empty loop.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from sslengine.errors import CheckpointError

if TYPE_CHECKING:  # a hook gets the task, and never imports it
    from sslengine.task.task import SelfSupervisionTask

    TaskView = SelfSupervisionTask
else:
    TaskView = Any

EVENTS = (
    "on_start",
    "on_phase_start",
    "on_step_start",
    "on_forward",
    "on_loss_and_meter",
    "on_backward",
    "on_update",
    "on_step",
    "on_phase_end",
    "on_end",
    "on_exception",
)


OPTIONAL = "optional"


class Hook:
    """Base of all hooks. Override what you need.

    State that a resumed run needs goes through `state_dict` / `load_state_dict`. It is stored
    under the hook's `name`, so the names of a task's hooks must differ. A state with the key
    OPTIONAL is dropped where a resumed run has no such hook.
    """

    @property
    def name(self) -> str:
        return type(self).__name__

    def on_start(self, task: TaskView) -> None:
        """Before the first phase, also of a resumed run: everything is built and loaded. If this
        is overridden, `load_state_dict` is called again after it, as it may set initial values."""

    def on_phase_start(self, task: TaskView) -> None:
        """A phase begins, or a resumed run continues it (`task.progress.step` is not 0)."""

    def on_step_start(self, task: TaskView) -> None:
        """A step begins: its batch is not read yet."""

    def on_forward(self, task: TaskView) -> None:
        """The model's output is there; the loss is not computed yet."""

    def on_loss_and_meter(self, task: TaskView) -> None:
        """Loss and meters are up to date."""

    def on_backward(self, task: TaskView) -> None:
        """Gradients are computed. Unless `task.updating`, accumulation is not complete."""

    def on_update(self, task: TaskView) -> None:
        """The optimizer has stepped."""

    def on_step(self, task: TaskView) -> None:
        """The step is counted: `task.iteration` is the number of finished train steps."""

    def on_phase_end(self, task: TaskView) -> None:
        """All steps of a phase are finished."""

    def on_end(self, task: TaskView) -> None:
        """All phases are finished."""

    def on_exception(self, task: TaskView) -> None:
        """`task.exception` was raised and will be raised again."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Service(Hook):
    """What the engine does at an event after all hooks. `on_step` is called from the step `due` of
    this process on."""

    due: float = 0


Calls = dict[str, tuple[Callable[[Any], Any], ...]]


def compile_events(
    hooks: Sequence[Any],
    services: Iterable[Any] = (),
    timer: AbstractContextManager[Any] | None = None,
) -> Calls:
    """Map each event to the methods to call, in order, without no-ops.

    Services are called after hooks; at a step the task asks each whether it is due. The timer is
    entered while the methods of an event are called.
    """
    asked = [each for each in services if not isinstance(each, Service)]
    calls: Calls = {}
    for event in EVENTS:
        everyone = [*hooks, *(asked if event == "on_step" else services)]
        calls[event] = tuple(getattr(each, event) for each in everyone if overrides(each, event))
    if timer is not None:
        for event, each in calls.items():
            calls[event] = (partial(_timed, timer, each),) if each else ()
    return calls


def _timed(
    timer: AbstractContextManager[Any], calls: Iterable[Callable[[Any], Any]], task: Any
) -> None:
    with timer:
        for call in calls:
            call(task)


def overrides(hook: Any, event: str) -> bool:
    method = getattr(type(hook), event, None) or getattr(hook, event, None)
    if method is None or method is getattr(Hook, event):
        return False
    return getattr(method, "__name__", "") != "_noop"  # Classy Vision's empty method


def hook_name(hook: Any) -> str:
    """The name under which a hook's state is stored. In Classy hooks `name` is a method."""
    name = hook.name
    return str(name() if callable(name) else name)


def hook_state(hook: Any) -> dict[str, Any]:
    get = getattr(hook, "state_dict", None) or getattr(hook, "get_classy_state", None)
    return dict(get()) if get is not None else {}


def hook_states(hooks: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """By the hooks' names. Raises CheckpointError if two that have a state share one."""
    states: dict[str, dict[str, Any]] = {}
    for hook in hooks:
        name, state = hook_name(hook), hook_state(hook)
        if state and states.get(name):
            raise CheckpointError(
                f"two hooks are named {name!r}, and each has a state: a checkpoint would hold one "
                f"of them. Give each a name: `name = property(lambda self: ...)`."
            )
        states[name] = state or states.get(name, {})
    return states


def load_hook_state(hook: Any, state: dict[str, Any]) -> None:
    load = getattr(hook, "load_state_dict", None) or getattr(hook, "set_classy_state", None)
    try:
        if load is not None:
            load(copy.deepcopy(state))
    except Exception as error:
        raise CheckpointError(
            f"the hook {hook_name(hook)} cannot load its state of the checkpoint: "
            f"{type(error).__name__}: {error}"
        ) from error
