"""Measure the time from the command to its first training step, and report it in one line.

    start-up 9.8 s: imports 4.1, config 0.6, rendezvous 0.3, data 1.2, model 1.0, first step 0.8

There is one account per run. The time of a phase starts at the end of the previous phase, without
the imports of components that registry.py does on first use of a name. A process that starts ranks
passes its account to them by an environment variable. Without a command, as in a notebook, nothing
is measured.

On a terminal each long phase is announced when it starts.

Imports create millions of objects and hardly any garbage, and Python's garbage collector would
scan all of them repeatedly: a fifth of the CPU time until the first step. So the collector is
disabled during imports, and these objects are excluded from later collections.

multiprocessing starts `python -c`, which searches the current folder first: a multiprocessing.py
there would run. So these processes start without it, and get this process's sys.path later.
"""

from __future__ import annotations

import gc
import json
import multiprocessing.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "SSLENGINE_START_UP"


_of_multiprocessing: Any = multiprocessing.util
_spawn = _of_multiprocessing.spawnv_passfds


def _start(path: Any, words: Sequence[str], *others: Any) -> int:
    """Start Python; if it runs `-c`, without the current folder in its sys.path."""
    head = "import sys; sys.path[:] = filter(None, sys.path); "
    words = [head + each if last == "-c" else each for last, each in zip(["", *words], words)]
    return int(_spawn(path, words, *others))


# PYTHONSAFEPATH would reach programs that a user's code starts, and 3.10 has none.
_of_multiprocessing.spawnv_passfds = _start


@dataclass
class Account:
    until: float  # time before this moment is in `seconds`
    seconds: dict[str, float] = field(default_factory=dict)
    importing: bool = False

    def add(self, phase: str, end: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + max(0.0, end - self.until)
        self.until = end


_account: Account | None = None
_first_of_process = True
_paused = _frozen = False  # garbage collection is paused; imported modules are excluded from it


def begin() -> None:
    """Start the account of a command. So far the process has only imported modules."""
    global _account, _first_of_process
    _account = Account(born() if _first_of_process else now())
    _first_of_process = False
    mark("imports")


@contextmanager
def without_garbage_collection() -> Iterator[None]:
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


def mark(phase: str) -> None:
    """End the phase."""
    if _account is not None:
        _account.add(phase, now())


def announce(doing: str) -> None:
    """Print on a terminal what starts now, because nothing else may be printed for seconds."""
    if _account is not None and os.environ.get("RANK", "0") == "0" and sys.stdout.isatty():
        print(f"{doing} ...", flush=True)  # noqa: T201


def is_measured() -> bool:
    """Is this the start of a run, which announces its phases?"""
    return _account is not None


@contextmanager
def importing() -> Iterator[None]:
    """Count the time of the block as imports, not as the current phase."""
    account = _account
    if account is None or account.importing:
        yield
        return
    began, account.importing = now(), True
    try:
        yield
    finally:
        taken = now() - began
        account.seconds["imports"] = account.seconds.get("imports", 0.0) + taken
        account.until += taken
        account.importing = False


def move_from_imports(phase: str, seconds: float) -> None:
    """Count these seconds of the current import as `phase` instead."""
    if _account is not None and _account.importing:
        for name, more in ((phase, seconds), ("imports", -seconds)):
            _account.seconds[name] = _account.seconds.get(name, 0.0) + more


@contextmanager
def passed_to_ranks() -> Iterator[None]:
    """Pass the account to processes that are started in the block."""
    if _account is not None:
        os.environ[VARIABLE] = json.dumps(asdict(_account))
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


def take_over() -> None:
    """In a rank: continue the account of the process that started it, if there is one."""
    global _account
    text = os.environ.pop(VARIABLE, "")
    # The account of a restarted rank would include the time before the restart.
    if text and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        _account = Account(**json.loads(text))
        _account.add("rendezvous", born())
        mark("imports")


def finish() -> str:
    """Return the line after the first step; "" the second time, or if nothing was measured."""
    global _account
    mark("first step")
    account, _account = _account, None
    if account is None:
        return ""
    parts = [f"{name} {taken:.1f}" for name, taken in account.seconds.items() if taken >= 0.05]
    return f"start-up {sum(account.seconds.values()):.1f} s: {', '.join(parts)}"


def now() -> float:
    """Return seconds of a clock that all processes of this machine share."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.time() if clock is None else time.clock_gettime(clock)


def born() -> float:
    """Return when this process was started; the present time if the system does not report it."""
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(after_name[19]) / os.sysconf("SC_CLK_TCK")  # seconds since boot
    except (OSError, ValueError, IndexError):
        return now()
