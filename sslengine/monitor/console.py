"""What people see of a run: a live bar on a terminal, plain lines elsewhere and in the log's files.

Plain lines are thinned out: one at the first step, one every few seconds, one at the
end of each phase. Every metric is in metrics.jsonl.

On a terminal a phase leaves one line. Metrics are shown whole or not at all; of those that do
not fit the line says how many.

What any logger says goes to a file per rank, warnings also to the screen.
"""

from __future__ import annotations

import logging
import sys
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from sslengine.atomic import make_folder, open_no_link
from sslengine.monitor.writers import Record, RunPlace, Writer
from sslengine.registry import register_writer
from sslengine.screen import Pace, ReadableFormatter, fit_line, screen_handler, wrapped
from sslengine.screen_console import LiteralConsole

_log, _warnings = logging.getLogger("sslengine"), logging.getLogger("py.warnings")
_of_root: list[logging.Handler] = []  # of the root logger, to be taken back
_levels: dict[logging.Logger, int] = {}
_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


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


@register_writer("console")
class ConsoleWriter(Writer):
    """Show records, with the progress in `record.display`: step, steps, epochs, eta_seconds."""

    def __init__(self, run: RunPlace) -> None:
        self.console = run.console or Screen()
        self._live: Live | None = None
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
        self._shown = record
        if self._live is None:
            self._live = Live(
                get_renderable=self._draw,
                console=self.console,
                transient=True,
                redirect_stderr=sys.stderr.isatty(),
            )
            self._live.start(refresh=True)

    def _draw(self) -> Table:
        """Draw the bar; of the metrics those that fit."""
        record, width = self._shown, self.console.width
        step, steps = record.display.get("step", 0), record.display.get("steps")
        bar_width = 24 if width >= 100 else 10
        bar = ProgressBar(steps, step, width=bar_width)
        words = [record.place, f"{step}/{steps}", record.eta]
        left = width - bar_width - 1 - sum(len(each) + 1 for each in words)
        table = Table.grid(padding=(0, 1))
        table.add_row(words[0], bar, *words[1:], fit_line(record.texts, left, more=False))
        return table

    def _end_bar(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


@register_writer("log")
class LogWriter(Writer):
    """Write phases as lines of the log file, and steps every few seconds."""

    def __init__(self, run: RunPlace) -> None:
        self._pace = Pace()

    def write(self, record: Record) -> None:
        if record.kind != "step":
            _log.info(record.phase_line())
        elif self._pace.is_due():
            _log.info(record.step_line())


# ---- the log


def log_path(run_dir: Path, rank: int) -> Path:
    return run_dir / ("log.txt" if rank == 0 else f"log_rank{rank}.txt")


class _LogFile(WatchedFileHandler):
    """A log that cannot be written (a full disk) says so once, and not at each line.

    It follows its name: when an earlier run's log is moved aside, a new file is begun.
    """

    _failed = False

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=open_no_link)  # type: ignore[return-value]

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._failed:
            print(f"ERROR: cannot write {self.baseFilename}: {sys.exc_info()[1]}", file=sys.stderr)  # noqa: T201
        self._failed = True


def open_log(run_dir: Path, rank: int, verbose: bool = False) -> None:
    """Send what is logged to the run's file, appending.

    The screen gets warnings on rank 0, and all of `sslengine` if `verbose`; where a line is
    logged with extra={"on_screen": ...}, that decides. Other loggers are heard from INFO on.
    Python's own warnings are the file's business alone.
    """
    close_log()
    make_folder(run_dir)
    to_file = _LogFile(log_path(run_dir, rank), encoding="utf-8", delay=True)
    to_file.setFormatter(ReadableFormatter(_FORMAT, indent="  "))
    to_file.addFilter(lambda each: each.levelno >= logging.INFO or each.name == _log.name)
    root, least = logging.getLogger(), logging.DEBUG if verbose else logging.WARNING
    prints = any(map(_prints, root.handlers))  # then it would print what is meant for the file
    if not prints and root.level > logging.INFO:
        _levels[root] = root.level
        root.setLevel(logging.INFO)
    _of_root[:] = [to_file, *([screen_handler()] if rank == 0 and not prints else [])]
    for each in _of_root:
        root.addHandler(each)
    for own in (_log, _warnings):
        own.propagate = False
        own.addHandler(to_file)
    if rank == 0:
        _log.addHandler(screen_handler(least))
    _log.setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.captureWarnings(True)


def _prints(handler: logging.Handler) -> bool:
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return any(getattr(handler, "stream", None) is each for each in streams)


def close_log() -> None:
    """Take back what `open_log` has done to loggers."""
    root = logging.getLogger()
    for logger, handlers in ((root, _of_root), *((own, own.handlers) for own in (_log, _warnings))):
        for handler in list(handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.propagate = True
    _of_root.clear()
    if root in _levels:
        root.setLevel(_levels.pop(root))
    logging.captureWarnings(False)
