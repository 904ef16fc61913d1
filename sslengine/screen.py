"""Show text and log lines to people: wrapped for a terminal, unchanged for other streams."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from sslengine.errors import readable

_LEAST = 20  # columns; a terminal may report 0
SECONDS_BETWEEN_LINES = 10.0


class Pace:
    """Thins out lines for people: the first, then one every few seconds."""

    def __init__(self, seconds: float = SECONDS_BETWEEN_LINES) -> None:
        self.seconds = seconds
        self._last = float("-inf")

    def is_due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True


def columns(stream: TextIO) -> int | None:
    """Return the width of the stream's terminal; None if it is not a terminal."""
    if not stream.isatty():
        return None
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        width = shutil.get_terminal_size().columns
    return max(width, _LEAST)


def wrapped(text: str, width: int | None) -> str:
    """Wrap long lines with an indent. Long words are not broken, so that paths can be copied."""
    if width is None:
        return text
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())] + "  "
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False, expand_tabs=False,
    )  # fmt: skip


def say(text: str, stream: TextIO, flush: bool = False) -> None:
    """Print it, wrapped if the stream is a terminal. A name in it does not command the terminal."""
    print(wrapped(readable(text, but="\n\t"), columns(stream)), file=stream, flush=flush)


def fit_line(parts: list[str], width: int | None, more: bool = True) -> str:
    """Join the first parts that fit in one line; with `more`, end it with `+n` omitted parts."""
    for left in range(len(parts)):
        shown = parts[: len(parts) - left]
        line = "  ".join([*shown, f"+{left}"] if left and more else shown)
        if width is None or len(line) <= width:
            return line
    return parts[0] if parts and more else ""


class ReadableFormatter(logging.Formatter):
    """Format messages so that a file's name in them can neither command a terminal nor look like
    another line of the log."""

    def __init__(self, how: str, indent: str = "") -> None:
        super().__init__(how)
        self._line_feed = f"\n{indent}"

    def format(self, record: logging.LogRecord) -> str:
        return readable(super().format(record), but="\n\t").replace("\n", self._line_feed)


class _Screen(logging.Handler):
    """Print to the stderr of the moment: while a bar moves, rich prints above it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(self.format(record), sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def screen_handler(least: int = logging.WARNING) -> logging.Handler:
    """Show warnings; where a line is logged with extra={"on_screen": ...}, that decides."""
    handler = _Screen()
    handler.setFormatter(ReadableFormatter("%(levelname)s: %(message)s"))
    handler.addFilter(lambda record: getattr(record, "on_screen", record.levelno >= least))
    return handler


@contextmanager
def show_log() -> Iterator[None]:
    """Show the log on the screen until a run opens its own (monitor/console.py)."""
    log, handler = logging.getLogger("sslengine"), screen_handler()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
