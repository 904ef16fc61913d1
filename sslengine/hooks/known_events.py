"""Is each hook called at all? A misspelt event is never fired, and a run says nothing of it."""

from __future__ import annotations

from typing import Any

from sslengine.errors import ConfigError, nearest
from sslengine.hooks.events import EVENTS, Hook


def expect_known_events(hook: Any) -> None:
    """Raise ConfigError if it has a method `on_...` that is no event, or none that is one."""
    kind = type(hook)
    if not isinstance(hook, Hook):  # one of Classy Vision's, say, which may have events of others
        if not any(hasattr(hook, event) for event in EVENTS):
            raise ConfigError(f"{kind.__name__} is no hook: it has none of {', '.join(EVENTS)}.")
        return
    for name in dir(kind):
        if name.startswith("on_") and name not in EVENTS and callable(getattr(kind, name)):
            hint = nearest(name, EVENTS) or f"There are {', '.join(EVENTS)}."
            raise ConfigError(
                f"{kind.__name__}.{name}: there is no such event, so it would never be called. "
                f"{hint} If it is none, let its name begin with something else than on_."
            )
