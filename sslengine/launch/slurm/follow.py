"""SLURM.WAIT: print a job's log as it grows, and return the job's status."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sslengine.errors import LaunchError
from sslengine.launch.slurm.cluster import JobState, job_state

_PERIOD = 2.0  # seconds between two questions to SLURM
_MAX_UNANSWERED = 30  # questions in a row
_AGREEING = 2  # answers in a row that must agree: a job may be NODE_FAIL, then PENDING


@dataclass
class Log:
    """A log file, and how much of it has been printed."""

    path: Path
    prefix: str = ""
    _seen: int = 0
    _rest: bytes = field(default=b"")

    def print_new(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._seen)
            new = file.read()
        self._seen += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            print(f"{self.prefix}{line.decode(errors='replace')}", flush=True)  # noqa: T201


def follow(jobs: Mapping[str, Sequence[Path]]) -> int:
    """Wait until all jobs have ended. jobs: id -> log files. Returns the first nonzero status."""
    many = len(jobs) > 1
    logs = [Log(path, f"[{job}] " if many else "") for job, paths in jobs.items() for path in paths]
    watched = [_Watched(job) for job in jobs]
    while not all(each.ended for each in watched):
        time.sleep(_PERIOD)
        for job in watched:
            job.look()
        for log in logs:
            log.print_new()
    return next((each.status for each in watched if each.status), 0)


class _Watched:
    def __init__(self, job: str) -> None:
        self.job = job
        self.ended = False
        self.status = 0
        self._looks = 0
        self._unanswered = 0

    def look(self) -> None:
        if self.ended:
            return
        try:
            state = job_state(self.job)
        except LaunchError as error:  # the controller may be restarted
            self._unanswered += 1
            if self._unanswered > _MAX_UNANSWERED:
                raise LaunchError(f"{error}\nThe job itself may continue.") from None
            return
        self._unanswered = 0
        over = state.ended or not state.name
        self._looks = self._looks + 1 if over else 0
        if self._looks >= _AGREEING:
            self.ended = True
            self._report(state)

    def _report(self, state: JobState) -> None:
        good = state.name == "COMPLETED"
        self.status = 0 if good else state.status or 1
        words = state.name or "no longer known to SLURM, its end was not seen"
        status = "" if good else f", status {self.status}"
        print(f"job {self.job}: {words}{status}", file=sys.stderr, flush=True)  # noqa: T201
