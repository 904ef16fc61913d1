"""Records as a line of text, for the screen and for the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sslengine.monitor.writers import Record
from sslengine.screen import fit_line


def step_line(record: Record) -> str:
    display = record.display
    step = f"step {display.get('step')}/{display.get('steps')}"
    return "  ".join(filter(None, (where(record), step, *values(record), eta(record))))


def phase_line(record: Record, width: int | None = None) -> str:
    """width: as many whole metrics as fit into one line, and how many do not."""
    return fit_line([where(record), *values(record)], width)


def where(record: Record) -> str:
    epochs = record.display.get("epochs")
    of = f"/{epochs}" if epochs else ""
    return f"{record.split} {record.epoch + 1}{of}"


def values(record: Record) -> list[str]:
    return [f"{name} {_number(value)}" for name, value in _leaves(record.values)]


def eta(record: Record) -> str:
    left = record.display.get("eta_seconds")
    return "" if left is None else f"eta {clock(left)}"


def _leaves(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            only = len(value) == 1 and next(iter(value)) == "0"
            inner = {prefix + name: next(iter(value.values()))} if only else value
            leaves.extend(_leaves(inner, "" if only else f"{prefix}{name}."))
        else:
            leaves.append((f"{prefix}{name}", value))
    return leaves


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def clock(seconds: float) -> str:
    """h:mm:ss"""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
