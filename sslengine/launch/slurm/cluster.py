"""Ask SLURM's commands: is it installed, has it GPUs, and how do jobs end?

SLURM.WAIT follows the jobs of a command: it prints their logs as they grow, until all have ended.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sslengine.errors import ConfigError, LaunchError

_ANSWER = 60  # seconds
_PERIOD = 2.0  # seconds between two questions about jobs
_MAX_UNANSWERED = 30  # questions in a row

_FORGOTTEN = "no longer known to SLURM"
# Final states of a job.
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "TIMEOUT", _FORGOTTEN,
}  # fmt: skip


def ask(*command: str) -> str:
    """Return the output of one of SLURM's commands; LaunchError with its message if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER, check=False)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"SLURM does not answer: {command[0]} took over {_ANSWER} s.") from None
    if done.returncode:
        raise LaunchError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def check_installed() -> None:
    if importlib.util.find_spec("submitit") is None:
        raise ConfigError(
            "config.SLURM.USE_SLURM needs submitit: pip install 'sslengine[slurm]'. Without it: "
            "start the command with srun or torchrun in a batch script, as docs/slurm.md shows."
        )
    missing = [name for name in ("sbatch", "srun", "squeue", "sinfo") if not shutil.which(name)]
    if missing:
        raise ConfigError(
            f"config.SLURM.USE_SLURM: {', '.join(missing)} not found on PATH. Run the command "
            f"where jobs are submitted, or without config.SLURM.USE_SLURM to run it here."
        )


def has_gpus(partition: str) -> bool:
    where = ["-p", partition] if partition else []
    return "gpu" in ask("sinfo", "-h", "-o", "%G", *where)


def follow(jobs: Mapping[str, Sequence[Path]]) -> int:
    """Print the jobs' logs until all have ended. Return 0 if all have completed, else 1.

    jobs: id -> log files.
    """
    many = len(jobs) > 1
    logs = [Log(path, f"[{job}] " if many else "") for job, paths in jobs.items() for path in paths]
    ends: dict[str, str] = {}
    before: dict[str, str] = {}
    unanswered = 0
    while len(ends) < len(jobs):
        time.sleep(_PERIOD)
        try:
            known = job_states()
        except LaunchError as error:  # the controller may be restarted
            unanswered += 1
            if unanswered > _MAX_UNANSWERED:
                raise LaunchError(f"{error}\nThe job itself may continue.") from None
            continue
        unanswered = 0
        states = {job: known.get(job, _FORGOTTEN) for job in jobs if job not in ends}
        for job, state in states.items():
            # Two answers must agree: a job may be NODE_FAIL, then PENDING.
            if state in _ENDED and before.get(job) == state:
                ends[job] = state
                print(f"job {job}: {state}", file=sys.stderr, flush=True)  # noqa: T201
        before = states
        for log in logs:
            log.print_new()
    return int(any(state != "COMPLETED" for state in ends.values()))


def job_states() -> dict[str, str]:
    """Return the states of the user's jobs by id, those of arrays as 17_0: RUNNING, FAILED ..."""
    lines = ask("squeue", "--me", "--array", "-h", "-t", "all", "-o", "%i %T").splitlines()
    return dict(line.split() for line in lines)


@dataclass
class Log:
    """A log file, and how much of it has been printed."""

    path: Path
    prefix: str = ""
    _seen: int = 0
    _rest: bytes = b""

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
