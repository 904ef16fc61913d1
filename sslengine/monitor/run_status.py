"""Read whether a run is running, complete, stopped or failed, and why; and each of its starts.

    status.json     the newest start's state; a killed run's still says `running`
    starts.jsonl    a line a start: the command, the machine, the code, the step it begins at

Rank 0 writes them while it holds the lock of the run's folder, so a reader who finds `running` and
no lock knows that the process is gone.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sslengine.atomic import lock_file, open_no_link
from sslengine.errors import NonFiniteLossError

LOCK = ".lock"
STATUS, STARTS = "status.json", "starts.jsonl"
RUNNING, COMPLETE, STOPPED, FAILED = "running", "complete", "stopped", "failed"


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


def read_status(folder: Path, step: int = 0, steps: int = 0) -> Status:
    """Return the state of the run. step, steps: those of a run whose version wrote no status."""
    found: Any = {}
    with suppress(OSError, ValueError):
        found = json.loads((folder / STATUS).read_bytes())
    known = {key: found[key] for key in Status.__dataclass_fields__ if key in found}
    if not isinstance(known.get("status"), str):
        status = RUNNING if _is_held(folder) else COMPLETE if step >= steps > 0 else STOPPED
        return Status(status, step, steps)
    if known["status"] == RUNNING and not _is_held(folder):
        known |= {"status": STOPPED, "cause": "its process is gone: killed?"}
    if known["status"] in (RUNNING, STOPPED):
        known["step"] = max(step, known.get("step", 0))
    return Status(**known)


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Return the starts of a run, the oldest first; [] of a run that kept none."""
    return read_lines(folder / STARTS)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines, without what is damaged; [] without a file."""
    found = []
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]


def is_not_finite(status: Status) -> bool:
    return status.error == NonFiniteLossError.__name__


def _is_held(folder: Path) -> bool:
    """Look whether a run is in the folder; False where the file system has no locks."""
    with suppress(OSError), open(folder / LOCK, "rb", opener=open_no_link) as file:
        return not lock_file(file.fileno(), fcntl.LOCK_SH)
    return False
