"""What is logged, on the screen: warnings, and where a line is logged with
extra={"on_screen": ...}, that decides."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sslengine.errors import readable
from sslengine.screen import say

_log = logging.getLogger("sslengine")


class ReadableFormatter(logging.Formatter):
    """What a message says of files and values cannot command a terminal that shows it, and in a
    file not look like another line of the log."""

    def __init__(self, how: str, indent: str = "") -> None:
        super().__init__(how)
        self._line_feed = f"\n{indent}"

    def format(self, record: logging.LogRecord) -> str:
        return readable(super().format(record), but="\n\t").replace("\n", self._line_feed)


class _Screen(logging.Handler):
    """The stderr of the moment: while a bar moves, rich replaces it and prints above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(self.format(record), sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def to_screen(least: int = logging.WARNING) -> logging.Handler:
    handler = _Screen()
    handler.setFormatter(ReadableFormatter("%(levelname)s: %(message)s"))
    handler.addFilter(lambda record: getattr(record, "on_screen", record.levelno >= least))
    return handler


@contextmanager
def heard() -> Iterator[None]:
    """Until a run opens its log (monitor/log_file.py)."""
    handler, level = to_screen(), _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)
