"""Values of the config as the command line assigns them: KEY=VALUE."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

_BEFORE_QUOTE = re.compile(r"(\\+)('|\Z)")
_OTHERS = ("true", "false", "null", "nan", "inf")  # which are no text without quotes
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*")


def overrides(values: Mapping[str, Any]) -> list[str]:
    """`{"OPTIMIZER.num_epochs": 5}` -> `config.OPTIMIZER.num_epochs=5`."""
    return [f"config.{key}={text(value)}" for key, value in values.items()]


def text(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {text(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(text, value)) + "]"
        case PurePath():
            return text(str(value))
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case str() if not _PLAIN.fullmatch(value) or value.lower() in _OTHERS:
            # Hydra takes a backslash for an escape only where a quote follows.
            escaped = _BEFORE_QUOTE.sub(r"\1\1\2", value)
            return "'" + escaped.replace("'", "\\'") + "'"
    # Numbers and arrays of numpy and torch.
    return text(value.tolist()) if hasattr(value, "tolist") else str(value)


def typed(given: Sequence[str]) -> list[str]:
    """What --set says; `config.` before a key may be left out."""
    return [each if each.startswith("config.") else f"config.{each}" for each in given]
