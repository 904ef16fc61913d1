"""Show on stderr what a command does, how much is left and what comes next.

    with progress("features of val", total=500, then="kNN") as step:
        for batch in batches:
            ...
            step(len(batch))

On a terminal it is a bar that disappears and leaves one line; elsewhere, as in a notebook, a pipe
or a log, lines with some seconds between them. Nothing is shown in the first AFTER seconds of a
command's stages, nor by ranks above 0 or by processes that a command starts for a part of it.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sslengine.errors import readable
from sslengine.screen import Pace

AFTER = 2.0  # seconds
# Stages that follow each other so closely count as one: many short ones are shown too.
_CLOSE = 1.0
_FLICKER = 0.2  # a stage that takes less gets no bar

pace = Pace()  # of lines


@contextmanager
def progress(
    what: str, total: int = 0, unit: str = "images", then: str = "", at_once: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a stage of a command. The function that is returned counts what is done.

    total: how many of `unit` there are; 0: it is not known, and only the time is shown.
    then: the next stage. at_once: show it from the start, because it takes long if it happens.
    """
    is_rank = multiprocessing.parent_process() is None or "RANK" in os.environ
    is_loader = multiprocessing.current_process().daemon
    if not is_rank or is_loader or os.environ.get("RANK", "0") != "0":
        yield lambda count: None
        return
    stage = _Stage(what, total, unit, then, at_once)
    _screen.begin(stage)
    try:
        yield stage.step
    except BaseException:
        _screen.end(stage, failed=True)
        raise
    _screen.end(stage)


class _Stage:
    def __init__(self, what: str, total: int, unit: str, then: str, at_once: bool) -> None:
        self.what, self.unit, self.then = readable(what), unit, then and f"then {readable(then)}"
        self.total, self.done, self.at_once = total, 0, at_once
        self.began = time.monotonic()

    def step(self, count: int = 1) -> None:
        self.done += count

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def describe(self) -> tuple[str, str]:
        """Return what is done, and the time that is left: the time so far if it is not known."""
        counted = f"{self.done}/{self.total} {self.unit}" if self.total else ""
        if self.total and self.done:
            return counted, f"{_clock(self.seconds * (self.total / self.done - 1))} left"
        return counted, _clock(self.seconds) if self.seconds >= 1 else ""

    @property
    def line(self) -> str:
        far = ", ".join(filter(None, (*self.describe(), self.then)))
        if any(self.describe()):
            return f"{self.what}: {far}"
        return f"{self.what}, {self.then}" if self.then else f"{self.what} ..."

    @property
    def last_line(self) -> str:
        counted = f"{self.done} {self.unit} in " if self.total else ""
        return f"{self.what}: {counted}{_clock(self.seconds)}"


class _Screen:
    """Show the stages that run: one, or one within another. A thread does it when it is time."""

    def __init__(self) -> None:
        self.stages: list[_Stage] = []
        self._lock = threading.RLock()
        self._silent_since = self._ended = float("-inf")
        self._live: Any = None  # rich's, on a terminal
        self._over, self._thread = threading.Event(), threading.Thread()

    def begin(self, stage: _Stage) -> None:
        with self._lock:
            if not self.stages and stage.began - self._ended > _CLOSE:
                self._silent_since = stage.began
            self.stages.append(stage)
            if stage.at_once or not AFTER:
                self._show(at_once=True)
            if len(self.stages) == 1:
                wait = max(self._silent_since + AFTER - stage.began, _FLICKER)
                self._over = threading.Event()
                given = wait, self._over
                self._thread = threading.Thread(target=self._watch, args=given, daemon=True)
                self._thread.start()

    def end(self, stage: _Stage, failed: bool = False) -> None:
        with self._lock:
            self.stages.remove(stage)
            self._ended, live, thread = time.monotonic(), self._live, self._thread
            if over := not self.stages:
                self._over.set()
                self.clear()
            if not failed and (stage.at_once or stage.seconds >= AFTER):
                if live is not None:
                    live.console.print(stage.last_line, soft_wrap=True)
                elif stage.at_once or pace.is_due():
                    print(stage.last_line, file=sys.stderr, flush=True)  # noqa: T201
        if over:
            thread.join()

    def clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _watch(self, wait: float, over: threading.Event) -> None:
        while not over.wait(wait):
            with self._lock:
                if not over.is_set():
                    self._show()
            wait = 1.0

    def _show(self, at_once: bool = False) -> None:
        if self._live is None and sys.stderr.isatty():
            self._live = _make_live(self.stages)
            self._live.start()
        elif self._live is None and (at_once or pace.is_due()):
            print("; ".join(each.line for each in self.stages), file=sys.stderr, flush=True)  # noqa: T201


def _make_live(stages: list[_Stage]) -> Any:
    """Draw a line for each stage at the bottom of the terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def draw() -> Table:
        table = Table.grid(padding=(0, 1))
        for last in (False, False, False, False, True):  # which gives way
            table.add_column(no_wrap=not last, overflow="ellipsis")
        for each in [*stages]:
            bar = ProgressBar(each.total or None, each.done, width=10, pulse=not each.done)
            then = Text(each.then, no_wrap=True, overflow="ellipsis")
            table.add_row(each.what, bar, *each.describe(), then)
        return table

    return Live(
        get_renderable=draw, transient=True,
        console=Console(stderr=True, markup=False, highlight=False, emoji=False),
        redirect_stdout=sys.stdout.isatty(), redirect_stderr=True,
    )  # fmt: skip


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


_screen = _Screen()
atexit.register(_screen.clear)  # the bar of what an error has ended
