"""Where the time from a command to its first training step goes, told in one line.

    start-up 9.8 s: imports 4.1, config 0.6, rendezvous 0.3, data 1.2, model 1.0, first step 0.8

There is one account for a run. A phase is all that has passed since the phase before, less the
imports in it: those of components, which registry.py makes when a name is first asked for.
A process that starts ranks hands its account on to them by the environment. Where no command
has begun, as in a notebook, nothing is counted.

On a terminal each phase that may last is named when it begins.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

VARIABLE = "SSLENGINE_START_UP"


@dataclass
class Account:
    until: float  # what has passed before this moment is in `seconds`
    seconds: dict[str, float] = field(default_factory=dict)
    importing: bool = False

    def add(self, phase: str, end: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + max(0.0, end - self.until)
        self.until = end


_account: Account | None = None
_first_of_process = True


def begin() -> None:
    """A command begins. Until now its process has done nothing but import."""
    global _account, _first_of_process
    _account = Account(born() if _first_of_process else now())
    _first_of_process = False
    mark("imports")


def mark(phase: str) -> None:
    """The phase ends."""
    if _account is not None:
        _account.add(phase, now())


def tell(doing: str) -> None:
    """On a terminal, what begins now: of the next seconds there may be nothing else to see."""
    if _account is not None and os.environ.get("RANK", "0") == "0" and sys.stdout.isatty():
        print(f"{doing} ...", flush=True)  # noqa: T201


@contextmanager
def importing() -> Iterator[None]:
    """What happens meanwhile is import, whatever phase it is in the middle of."""
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


def was(phase: str, seconds: float) -> None:
    """So much of an import that is under way was something else."""
    if _account is not None and _account.importing:
        for name, more in ((phase, seconds), ("imports", -seconds)):
            _account.seconds[name] = _account.seconds.get(name, 0.0) + more


@contextmanager
def handed_on() -> Iterator[None]:
    """Processes that are started meanwhile may continue with this account."""
    if _account is not None:
        os.environ[VARIABLE] = json.dumps(asdict(_account))
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


def take_over() -> None:
    """In a rank: continue with the account of the process that started it, if there is one."""
    global _account
    text = os.environ.pop(VARIABLE, "")
    # A rank that is started again was not started by the command.
    if text and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        _account = Account(**json.loads(text))
        _account.add("rendezvous", born())
        mark("imports")


def finish() -> str:
    """The first step is made: the line. Empty if nothing was counted, or if it has been told."""
    global _account
    mark("first step")
    account, _account = _account, None
    if account is None:
        return ""
    parts = [f"{name} {taken:.1f}" for name, taken in account.seconds.items() if taken >= 0.05]
    return f"start-up {sum(account.seconds.values()):.1f} s: {', '.join(parts)}"


def now() -> float:
    """Seconds, on a clock that all processes of this machine share."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.time() if clock is None else time.clock_gettime(clock)


def born() -> float:
    """When this process was started; where the system does not tell, now."""
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(after_name[19]) / os.sysconf("SC_CLK_TCK")  # since the machine was booted
    except (OSError, ValueError, IndexError):
        return now()
