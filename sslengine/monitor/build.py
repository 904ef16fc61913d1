"""The writers of a run, by their names: `config.HOOKS.WRITERS`.

    @register_writer("my_tracker")
    class MyTracker(Writer):
        def __init__(self, run: RunPlace, project: str = "ssl") -> None: ...

`run` is the engine's; further arguments stand in YAML: `{name: my_tracker, project: x}`.
A writer that was registered with an options dataclass gets one object of it instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from sslengine.errors import ConfigError
from sslengine.monitor.console import ConsoleWriter
from sslengine.monitor.log_file import LogWriter
from sslengine.monitor.writers import ImageWriter, JsonLinesWriter, TensorBoardWriter, Writer
from sslengine.registry import WRITERS, register_writer

METRICS = "metrics.jsonl"


class RunPlace(NamedTuple):
    """What a writer may need to know of the run."""

    folder: Path
    iteration: int  # from which it continues: records of later steps come again
    console: Console | None = None
    # Are later steps made again? Not in a run that only tests.
    trains: bool = True
    # As it is stored: without secrets and environment.
    config: Mapping[str, Any] | None = None


def build_writers(entries: Iterable[str | Mapping[str, Any]], run: RunPlace) -> list[Writer]:
    return [_build(each if isinstance(each, Mapping) else {"name": each}, run) for each in entries]


def _build(entry: Mapping[str, Any], run: RunPlace) -> Writer:
    name = str(entry["name"])
    arguments = {str(key): value for key, value in entry.items() if key != "name"}
    writer = WRITERS.make(name, arguments, "config.HOOKS.WRITERS", run)
    if not isinstance(writer, Writer):
        raise ConfigError(
            f"config.HOOKS.WRITERS: {name!r} is no writer: subclass sslengine.monitor.writers."
            f"Writer and define write(record)."
        )
    return writer


@register_writer("console")
def console(run: RunPlace) -> Writer:
    return ConsoleWriter(run.console)


@register_writer("log")
def log(run: RunPlace) -> Writer:
    return LogWriter()


@register_writer("json")
def json_lines(run: RunPlace) -> Writer:
    return JsonLinesWriter(run.folder / METRICS)


@register_writer("images")
def images(run: RunPlace) -> Writer:
    return ImageWriter(run.folder / "images")


@register_writer("tensorboard")
def tensorboard(run: RunPlace, flush_minutes: float = 5.0) -> Writer:
    """flush_minutes: how often the file is written."""
    iteration = run.iteration if run.trains else None
    return TensorBoardWriter(run.folder / "tb_logs", flush_minutes, iteration)
