"""Is each hook called as it expects? A misspelt event is never fired, and a run says nothing of it.

Of a class these are known before the run; the hook itself may be of another engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from sslengine.errors import ConfigError, nearest
from sslengine.hooks.events import EVENTS, Hook

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
    """What is wrong with a class of hooks."""
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
