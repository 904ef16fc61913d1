"""Hooks: the events of a run and the engine's own listeners.

default.py lists the hooks that the config enables. Register your own hook with
`@register_hook("name")` and name it in `config.HOOKS.EXTRA`.
"""

from sslengine.registry import HOOKS

HOOKS.declare("sslengine.hooks.online_eval", "online_eval")
