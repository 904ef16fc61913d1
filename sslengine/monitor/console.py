"""What a person sees: a live bar on a terminal, plain lines anywhere else.

Plain lines are thinned out: one at the first step, one every few seconds, one at the
end of each phase. Every metric is in metrics.jsonl.

On a terminal a phase leaves one line. Metrics are shown whole or not at all; of those that do
not fit the line says how many.
"""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.table import Column
from rich.text import Text

from sslengine.monitor.writers import Record, Writer
from sslengine.screen import Pace, fit_line, wrapped
from sslengine.screen_console import LiteralConsole


class Screen(LiteralConsole):
    """On a terminal, text is wrapped between words, and a path that is too long stays whole."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.soft_wrap = not self.is_terminal

    def print(self, *objects: Any, **how: Any) -> None:
        if self.is_terminal:
            objects = tuple(
                wrapped(each, self.width) if isinstance(each, str) else each for each in objects
            )
            how = {"overflow": "ignore", "crop": False, **how}
        super().print(*objects, **how)


class _Whole:
    """The column that gives way on a narrow terminal."""

    def __init__(self, metrics: list[str]) -> None:
        self.metrics = metrics

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(0, len(fit_line(self.metrics, None)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(fit_line(self.metrics, options.max_width, more=False), no_wrap=True)


class _Metrics(ProgressColumn):
    def render(self, task: Task) -> _Whole:  # type: ignore[override]
        return _Whole(task.fields["metrics"])


class ConsoleWriter(Writer):
    """Reads `record.display`: step, steps, epochs, eta_seconds, images_per_second."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Screen()
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._pace = Pace()

    def write(self, record: Record) -> None:
        if record.kind != "step":
            self._end_bar()
            width = self.console.width if self.console.is_terminal else None
            self.console.print(record.phase_line(width))
        elif self.console.is_terminal:
            self._update_bar(record)
        elif self._pace.is_due():
            self.console.print(record.step_line())

    def close(self) -> None:
        self._end_bar()

    def _update_bar(self, record: Record) -> None:
        if self._progress is None:
            fixed = Column(no_wrap=True)
            self._progress = Progress(
                TextColumn("{task.description}", table_column=fixed),
                BarColumn(bar_width=24 if self.console.width >= 100 else 10, table_column=fixed),
                MofNCompleteColumn(table_column=fixed),
                TextColumn("{task.fields[eta]}", table_column=fixed),
                _Metrics(),
                console=self.console,
                transient=True,
                redirect_stderr=sys.stderr.isatty(),
            )
            self._bar = self._progress.add_task("", total=None, eta="", metrics=[])
        assert self._bar is not None
        self._progress.update(
            self._bar,
            description=record.place,
            completed=record.display.get("step", 0),
            total=record.display.get("steps"),
            eta=record.eta,
            metrics=record.texts,
        )
        self._progress.start()  # does nothing where it is started

    def _end_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
