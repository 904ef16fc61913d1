"""Start fast and safely: no garbage collection among imports, no modules of the current folder.

Imports create millions of objects and hardly any garbage, and Python's garbage collector would
scan all of them repeatedly: a fifth of the CPU time until the first step. So it is disabled during
imports, and these objects are excluded from later collections.

multiprocessing starts `python -c`, which searches the current folder first: a multiprocessing.py
there would run. So these processes start without it, and get this process's sys.path later.

A command also reports `first step after 9.8 s`, and on a terminal each long phase before that. The
moment when it began is in the environment, which ranks inherit; a notebook has no such moment.
"""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

VARIABLE = "SSLENGINE_BEGAN"  # seconds of time.time()

_multiprocessing: Any = multiprocessing.util
_spawn = _multiprocessing.spawnv_passfds


def _start(path: Any, words: Sequence[str], *others: Any) -> int:
    """Start Python; if it runs `-c`, without the current folder in its sys.path."""
    head = "import sys; sys.path[:] = filter(None, sys.path); "
    words = [head + each if last == "-c" else each for last, each in zip(["", *words], words)]
    return int(_spawn(path, words, *others))


# PYTHONSAFEPATH would reach programs that a user's code starts, and 3.10 has none.
_multiprocessing.spawnv_passfds = _start

_began: float | None = time.time()  # of the process's first command: when this was imported
_paused = _frozen = False  # garbage collection is paused; imported modules are excluded from it


def begin() -> None:
    """Note when a command begins."""
    global _began
    os.environ[VARIABLE] = str(_began or time.time())
    _began = None


def finish() -> str:
    """Return the line after the first step; "" the second time, or if nothing was measured."""
    began = os.environ.pop(VARIABLE, "")
    # The time of a restarted rank would include that before the restart.
    if not began or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return ""
    return f"first step after {time.time() - float(began):.1f} s"


def is_measured() -> bool:
    """Return whether a command has begun that has not ended its first step yet."""
    return VARIABLE in os.environ


def announce(doing: str) -> None:
    """Print on a terminal what starts now, because nothing else may be printed for seconds."""
    if is_measured() and os.environ.get("RANK", "0") == "0" and sys.stdout.isatty():
        print(f"{doing} ...", flush=True)  # noqa: T201


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Disable garbage collection until `imported` is called or the block ends."""
    global _paused
    if not gc.isenabled():
        yield
        return
    gc.disable()
    _paused = True
    try:
        yield
    finally:
        gc.enable()
        _paused = False


def imported() -> None:
    """Enable garbage collection after the imports, and exclude the objects that exist now."""
    global _paused, _frozen
    if not _paused:
        return
    if not _frozen:  # in a second run of this process, the objects may be garbage of the first
        gc.freeze()
    gc.enable()
    _paused, _frozen = False, True
