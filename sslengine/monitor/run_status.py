"""Is a run running, complete, stopped or failed, and why? And each of its starts.

    status.json     the newest start's state; a killed run's still says `running`
    starts.jsonl    a line a start: the command, the machine, the code, the step it begins at

Rank 0 writes them while it holds the lock of the run's folder, so a reader who finds `running` and
no lock knows that the process is gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sslengine.atomic import open_no_link, write_json
from sslengine.checkpoint.lock import is_held
from sslengine.distributed.ranks import is_primary, world_size
from sslengine.errors import NonFiniteLossError, Preempted
from sslengine.monitor.environment import peak_memory

STATUS, STARTS = "status.json", "starts.jsonl"
RUNNING, COMPLETE, STOPPED, FAILED = "running", "complete", "stopped", "failed"
# What of environment.json a start keeps.
_OF_START = ("recipe", "time", "command", "folder", "host", "code", "sslengine", "python", "gpus")


@dataclass(frozen=True)
class Status:
    status: str
    step: int = 0
    steps: int = 0
    # What ended the run: the first line of the error, or the signal.
    cause: str = ""
    # The error's class; empty: none.
    error: str = ""
    ended: str = ""
    memory: Mapping[str, float] | None = None  # peaks in GB, of rank 0


@contextmanager
def recorded(task: Any, run_dir: Path, environment: Mapping[str, Any]) -> Iterator[None]:
    """Write what becomes of the run inside the block. A disk that is full changes nothing."""
    if not is_primary():
        yield
        return
    steps = sum(each.own_steps for each in task.phases if each.train)
    begun = {name: environment.get(name) for name in _OF_START}
    begun |= {"step": task.iteration, "ranks": world_size(), "device": task.device.type}
    with suppress(OSError):
        _append(run_dir / STARTS, begun)
    _write(run_dir, Status(RUNNING, task.iteration, steps))

    def end(status: str, cause: str = "", error: BaseException | None = None) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        step = getattr(error, "iteration", None) or task.iteration
        kind = type(error).__name__ if error is not None else ""
        memory = peak_memory(task.device)
        _write(run_dir, Status(status, step, steps, cause, kind, now, memory))

    try:
        yield
    except (Preempted, KeyboardInterrupt) as error:
        end(STOPPED, str(error).partition(";")[0] or "interrupted")
        raise
    except BaseException as error:
        told = str(error).strip() or type(error).__name__
        end(FAILED, told.splitlines()[0], error)
        raise
    end(COMPLETE)


def read_status(folder: Path, step: int = 0, steps: int = 0) -> Status:
    """Return the state of the run. step, steps: those of a run whose version wrote no status."""
    found: Any = {}
    with suppress(OSError, ValueError):
        found = json.loads((folder / STATUS).read_bytes())
    known = {key: found[key] for key in Status.__dataclass_fields__ if key in found}
    if not isinstance(known.get("status"), str):
        status = RUNNING if is_held(folder) else COMPLETE if step >= steps > 0 else STOPPED
        return Status(status, step, steps)
    if known["status"] == RUNNING and not is_held(folder):
        known |= {"status": STOPPED, "cause": "its process is gone: killed?"}
    if known["status"] in (RUNNING, STOPPED):
        known["step"] = max(step, known.get("step", 0))
    return Status(**known)


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Return the starts of a run, the oldest first; [] of a run that kept none."""
    found = []
    with suppress(OSError):
        for line in (folder / STARTS).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]


def is_not_finite(status: Status) -> bool:
    return status.error == NonFiniteLossError.__name__


def _write(run_dir: Path, status: Status) -> None:
    with suppress(OSError):
        write_json(run_dir / STATUS, vars(status))


def _append(path: Path, content: Mapping[str, Any]) -> None:
    file = open_no_link(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, json.dumps(content).encode() + b"\n")
    finally:
        os.close(file)
