"""The run's log: everything goes to a file per rank, warnings and errors also to the screen."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from sslengine.checkpoint.atomic import make_folder
from sslengine.monitor.text import Pace, phase_line, step_line
from sslengine.monitor.writers import Record, Writer

_log = logging.getLogger("sslengine")
_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


def log_path(run_dir: Path, rank: int) -> Path:
    return run_dir / ("log.txt" if rank == 0 else f"log_rank{rank}.txt")


class _LogFile(logging.FileHandler):
    """A log that cannot be written (a full disk) says so once, and not at each line."""

    _failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._failed:
            print(f"ERROR: cannot write {self.baseFilename}: {sys.exc_info()[1]}", file=sys.stderr)  # noqa: T201
        self._failed = True


def open_log(run_dir: Path, rank: int, verbose: bool = False) -> None:
    """Send the loggers `sslengine` and `py.warnings` to the run's file, appending.

    The screen gets warnings of rank 0's `sslengine` logger, all of it if `verbose`; where a line is
    logged with extra={"on_screen": ...}, that decides.
    Deprecation warnings of libraries are the file's business alone.
    """
    close_log()
    make_folder(run_dir)
    to_file = _LogFile(log_path(run_dir, rank), encoding="utf-8", delay=True)
    to_file.setFormatter(logging.Formatter(_FORMAT))
    logger = logging.getLogger("sslengine")
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
    logger.addHandler(to_file)
    if rank == 0:
        to_screen = logging.StreamHandler(sys.stderr)
        to_screen.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        least = logging.DEBUG if verbose else logging.WARNING
        to_screen.addFilter(lambda record: getattr(record, "on_screen", record.levelno >= least))
        logger.addHandler(to_screen)
    logging.captureWarnings(True)
    warnings_log = logging.getLogger("py.warnings")
    warnings_log.propagate = False
    warnings_log.addHandler(to_file)


def close_log() -> None:
    for name in ("sslengine", "py.warnings"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.propagate = True
    logging.captureWarnings(False)


class LogWriter(Writer):
    """Phases as lines of the log file, and steps every few seconds; metrics.jsonl has them all."""

    def __init__(self) -> None:
        self._pace = Pace()

    def write(self, record: Record) -> None:
        if record.kind == "phase":
            _log.info(phase_line(record))
        elif self._pace.is_due():
            _log.info(step_line(record))
