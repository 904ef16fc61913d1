"""The events of a run, and the base class of hooks.

A hook subclasses `Hook` and overrides the events it needs; each gets the task. The events of hooks
written for VISSL or Classy Vision (`ClassyHook`) are called as there, but many attributes of the
task are others (docs/vissl_differences.md). An event that no hook overrides costs one empty loop.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sslengine.errors import CheckpointError, ConfigError

if TYPE_CHECKING:  # a hook gets the task, and never imports it
    from sslengine.engine.task import SelfSupervisionTask

    Task = SelfSupervisionTask
else:
    Task = Any

EVENTS = ("on_start", "on_phase_start", "on_step_start", "on_forward", "on_loss_and_meter",
          "on_backward", "on_update", "on_step", "on_phase_end", "on_end",
          "on_exception")  # fmt: skip
OPTIONAL = "optional"


class Hook:
    """Base of all hooks. Override what you need.

    State that a resumed run needs goes through `state_dict` / `load_state_dict`. It is stored
    under the hook's `name`, so the names of a task's hooks must differ. A state with the key
    OPTIONAL is dropped where a resumed run has no such hook.
    """

    # `on_backward` and `on_step` are called from this step of the process on. A hook that acts at
    # few steps sets it to the next one; it may be called earlier.
    due: float = 0

    @property
    def name(self) -> str:
        return type(self).__name__

    def on_start(self, task: Task) -> None:
        """Before the first phase, also of a resumed run: everything is built and loaded. If this
        is overridden, `load_state_dict` is called again after it, as it may set initial values."""

    def on_phase_start(self, task: Task) -> None:
        """A phase begins, or a resumed run continues it (`task.progress.step` is not 0)."""

    def on_step_start(self, task: Task) -> None:
        """A step begins: its batch is not read yet."""

    def on_forward(self, task: Task) -> None:
        """The model's output is there; the loss is not computed yet."""

    def on_loss_and_meter(self, task: Task) -> None:
        """Loss and meters are up to date."""

    def on_backward(self, task: Task) -> None:
        """Gradients are computed. Unless `task.updating`, accumulation is not complete."""

    def on_update(self, task: Task) -> None:
        """The optimizer has stepped."""

    def on_step(self, task: Task) -> None:
        """The step is counted: `task.iteration` is the number of finished train steps."""

    def on_phase_end(self, task: Task) -> None:
        """All steps of a phase are finished."""

    def on_end(self, task: Task) -> None:
        """All phases are finished."""

    def on_exception(self, task: Task) -> None:
        """`task.exception` was raised and will be raised again."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


Calls = dict[str, tuple[Callable[[Any], Any], ...]]


def compile_events(hooks: Iterable[Any]) -> Calls:
    """Map each event to the methods to call, in the order of the hooks, without no-ops."""
    hooks = list(hooks)
    return {
        event: tuple(getattr(hook, event) for hook in hooks if overrides(hook, event))
        for event in EVENTS
    }


def take_dated(calls: Calls, hooks: Sequence[Any], event: str) -> list[Hook]:
    """Remove the calls of an event, and return the hooks to ask at each step whether they are due.

    If one of them does not say when it is due, nothing is changed, to keep their order.
    """
    acting = [each for each in hooks if overrides(each, event)]
    if not all(isinstance(each, Hook) for each in acting):
        return []
    calls[event] = ()
    return acting


def overrides(hook: Any, event: str) -> bool:
    method = getattr(type(hook), event, None) or getattr(hook, event, None)
    if method is None or method is getattr(Hook, event):
        return False
    return getattr(method, "__name__", "") != "_noop"  # Classy Vision's empty method


def expect_known_events(hook: Any) -> None:
    """Raise ConfigError if a method `on_...` is no event, or none is one: it is never called."""
    kind = type(hook)
    names = dir(kind) if isinstance(hook, Hook) else ()  # one of Classy Vision's may have others
    unknown = [name for name in names if name.startswith("on_") and name not in EVENTS]
    if unknown or not any(hasattr(hook, event) for event in EVENTS):
        found = ", ".join(f"{kind.__name__}.{name}" for name in unknown) or kind.__name__
        raise ConfigError(f"{found} would never be called: the events are {', '.join(EVENTS)}.")


def hook_name(hook: Any) -> str:
    """Return the name of a hook's state. In Classy hooks `name` is a method."""
    name = hook.name
    return str(name() if callable(name) else name)


def hook_state(hook: Any) -> dict[str, Any]:
    get = getattr(hook, "state_dict", None) or getattr(hook, "get_classy_state", None)
    return dict(get()) if get is not None else {}


def hook_states(hooks: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Return states by the hooks' names. Raise CheckpointError if two of them share a name."""
    states: dict[str, dict[str, Any]] = {}
    for hook in hooks:
        name, state = hook_name(hook), hook_state(hook)
        if state and states.get(name):
            raise CheckpointError(f"two hooks with a state are named {name!r}: set another `name`.")
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
