"""Hooks: the events of a run and the engine's own listeners.

The list of those that the config asks for is in default.py. A hook of your own is
registered with `@register_hook("name")` and named in `config.HOOKS.EXTRA`.
"""
