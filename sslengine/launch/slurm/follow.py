"""SLURM.WAIT: print a job's log as it grows, and come back with the job's status."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sslengine.errors import LaunchError
from sslengine.launch.slurm.cluster import JobState, job_state

_LOOK = 2.0  # seconds
_IN_VAIN = 30  # questions in a row that SLURM does not answer
_TWICE = 2  # looks that must agree: a job that loses its node is NODE_FAIL, then PENDING


@dataclass
class Log:
    """What has been printed of a file."""

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
    """Until all have ended. jobs: the log files of each id. The first status that is not 0."""
    many = len(jobs) > 1
    logs = [Log(path, f"[{job}] " if many else "") for job, paths in jobs.items() for path in paths]
    watched = [_Watched(job) for job in jobs]
    while not all(each.ended for each in watched):
        time.sleep(_LOOK)
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
            if self._unanswered > _IN_VAIN:
                raise LaunchError(f"{error}\nThe job itself may continue.") from None
            return
        self._unanswered = 0
        over = state.ended or not state.name
        self._looks = self._looks + 1 if over else 0
        if self._looks >= _TWICE:
            self.ended = True
            self._tell(state)

    def _tell(self, state: JobState) -> None:
        good = state.name == "COMPLETED"
        self.status = 0 if good else state.status or 1
        words = state.name or "forgotten by SLURM before its end was seen"
        status = "" if good else f", status {self.status}"
        print(f"job {self.job}: {words}{status}", file=sys.stderr, flush=True)  # noqa: T201
