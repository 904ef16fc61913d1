from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sslengine.errors import ConfigError
from sslengine.monitor.build import RunPlace, build_writers
from sslengine.monitor.writers import Record, Writer
from sslengine.registry import WRITERS, register_writer
from tests.config.recipes import resolved


class Tracker(Writer):
    def __init__(self, run: RunPlace, project: str = "ssl") -> None:
        self.folder, self.project = run.folder, project

    def write(self, record: Record) -> None:
        pass


@dataclass
class TrackerOptions:
    project: str = "ssl"
    every: int = 1

    def check(self) -> Iterator[str]:
        if self.every < 1:
            yield f"every: expected 1 or more, got {self.every}."


if "test_tracker" not in WRITERS:

    @register_writer("test_tracker", options=TrackerOptions)
    def tracker(run: RunPlace, options: TrackerOptions) -> Writer:
        return Tracker(run, f"{options.project} {options.every}")


DOTTED = "tests.monitor.test_build:Tracker"


def test_writers_by_name_and_with_arguments(tmp_path: Path) -> None:
    entries = [
        "console", "log", "json", "csv", "images", {"name": "tensorboard", "flush_minutes": 1.0},
        DOTTED, {"name": DOTTED, "project": "x"}, {"name": "test_tracker", "every": 3},
    ]  # fmt: skip
    writers = build_writers(entries, RunPlace(tmp_path, 0))
    assert [type(each).__name__ for each in writers] == [
        "ConsoleWriter", "LogWriter", "JsonLinesWriter", "CsvWriter", "ImageWriter",
        "TensorBoardWriter", "Tracker", "Tracker", "Tracker",
    ]  # fmt: skip
    assert [each.project for each in writers if isinstance(each, Tracker)] == ["ssl", "x", "ssl 3"]
    for each in writers:
        each.close()


def test_every_writer_that_ships_is_declared_and_no_other() -> None:
    assert set(WRITERS._declared) == {
        "console", "log", "json", "csv", "images", "tensorboard", "tracker", "mlflow",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("jsn", "HOOKS.WRITERS.1: there is no writer named 'jsn'. Did you mean 'json'"),
        ({"name": "csv", "path": "x"}, "HOOKS.WRITERS.1.path: CsvWriter takes no such argument"),
        ({"name": DOTTED, "run": "x"}, "WRITERS.1.run: Tracker takes no such argument"),
        ({"name": "test_tracker", "evry": 1}, "WRITERS.1.evry: .* Did you mean 'every'"),
        ({"name": "test_tracker", "every": 0}, "WRITERS.1.every: expected 1 or more, got 0"),
        ({"name": "test_tracker", "every": "x"}, "WRITERS.1.every: expected int, got 'x'"),
    ],
)
def test_mistakes_are_told_before_anything_starts(entry: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolved(HOOKS__WRITERS=["console", entry])


def test_what_is_no_writer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no writer: subclass"):
        build_writers(["tests.monitor.test_build:TrackerOptions"], RunPlace(tmp_path, 0))
