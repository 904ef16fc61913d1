"""What a person sees: a live bar on a terminal, plain lines anywhere else.

Plain lines are thinned out: one at the first step, one every few seconds, one at the
end of each phase. Every figure is in metrics.jsonl.
"""

from __future__ import annotations

from rich.console import Console
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

from sslengine.monitor.text import Pace, eta, phase_line, step_line, values, where
from sslengine.monitor.writers import Record, Writer


class _Figures(ProgressColumn):
    """The column that gives way on a narrow terminal."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["figures"], no_wrap=True, overflow="ellipsis")


class ConsoleWriter(Writer):
    """Reads `record.display`: step, steps, epochs, eta_seconds, images_per_second."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(soft_wrap=True, highlight=False)
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._pace = Pace()

    def write(self, record: Record) -> None:
        if record.kind == "phase":
            self._end_bar()
            self.console.print(phase_line(record))
        elif self.console.is_terminal:
            self._update_bar(record)
        elif self._pace.is_due():
            self.console.print(step_line(record))

    def close(self) -> None:
        self._end_bar()

    def _update_bar(self, record: Record) -> None:
        if self._progress is None:
            whole = Column(no_wrap=True)
            self._progress = Progress(
                TextColumn("{task.description}", table_column=whole),
                BarColumn(bar_width=24 if self.console.width >= 100 else 10, table_column=whole),
                MofNCompleteColumn(table_column=whole),
                TextColumn("{task.fields[eta]}", table_column=whole),
                _Figures(),
                console=self.console,
                transient=True,
            )
            self._bar = self._progress.add_task("", total=None, eta="", figures="")
        assert self._bar is not None
        self._progress.update(
            self._bar,
            description=where(record),
            completed=record.display.get("step", 0),
            total=record.display.get("steps"),
            eta=eta(record),
            figures=values(record),
        )
        self._progress.start()  # does nothing where it is started

    def _end_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
