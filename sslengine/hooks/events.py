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
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from sslengine.errors import CheckpointError, ConfigError, nearest

if TYPE_CHECKING:  # a hook gets the task, and never imports it
    from sslengine.engine.task import SelfSupervisionTask

    Task = SelfSupervisionTask
else:
    Task = Any

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

    # `on_step` is called from this step of the process on. A hook that acts at few steps sets it to
    # the next one; it may be called earlier.
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


def compile_events(hooks: Iterable[Any], timer: AbstractContextManager[Any] | None = None) -> Calls:
    """Map each event to the methods to call, in the order of the hooks, without no-ops.

    The timer is entered while the methods of an event are called.
    """
    hooks = list(hooks)
    calls: Calls = {
        event: tuple(getattr(hook, event) for hook in hooks if overrides(hook, event))
        for event in EVENTS
    }
    if timer is not None:
        for event, each in calls.items():
            calls[event] = (partial(_timed, timer, each),) if each else ()
    return calls


def take_dated(calls: Calls, hooks: Sequence[Any]) -> list[Hook]:
    """Remove the calls of `on_step`, and return the hooks to ask at each step whether they are due.

    If a hook does not say when it is due, nothing is changed, to keep their order.
    """
    acting = [each for each in hooks if overrides(each, "on_step")]
    if not all(isinstance(each, Hook) for each in acting):
        return []
    calls["on_step"] = ()
    return acting


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


_OF_STATE = ("state_dict", "load_state_dict")


def expect_known_events(hook: Any) -> None:
    """Raise ConfigError if it has a method `on_...` that is no event, or none that is one."""
    kind = type(hook)
    if issubclass(kind, Hook):
        for text in problems_of(kind):
            raise ConfigError(text)
    # One of Classy Vision's, say, may have events of others.
    elif not any(hasattr(hook, event) for event in EVENTS):
        raise ConfigError(f"{kind.__name__} is no hook: it has none of {', '.join(EVENTS)}.")


def problems_of(kind: type[Hook]) -> Iterator[str]:
    """Say what is wrong with a class of hooks: a misspelt event would never be fired."""
    for name in dir(kind):
        if not name.startswith("on_") or not callable(getattr(kind, name)):
            continue
        if name not in EVENTS:
            hint = nearest(name, EVENTS) or f"There are {', '.join(EVENTS)}."
            yield (
                f"{kind.__name__}.{name}: there is no such event, so it would never be called. "
                f"{hint} If it is none, let its name begin with something else than on_."
            )
        elif not _takes_task(kind, name):
            yield f"{kind.__name__}.{name}: expected {name}(self, task), as events get the task."
    saves, loads = (getattr(kind, each) is not getattr(Hook, each) for each in _OF_STATE)
    if saves and not loads:
        yield (
            f"{kind.__name__}.state_dict: expected also load_state_dict(self, state), or a resumed "
            f"run would begin without that state."
        )


def _takes_task(kind: type[Hook], event: str) -> bool:
    static = isinstance(inspect.getattr_static(kind, event), (staticmethod, classmethod))
    try:
        inspect.signature(getattr(kind, event)).bind(*[None] * (1 if static else 2))
    except TypeError:
        return False
    except ValueError:  # without a signature that can be read
        return True
    return True
