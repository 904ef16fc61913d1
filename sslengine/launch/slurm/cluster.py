"""Ask SLURM's commands about GPUs and jobs, and check that SLURM is installed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass

from sslengine.errors import ConfigError, LaunchError

_ANSWER = 60  # seconds

# Final states of a job.
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "TIMEOUT",
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
    missing = [name for name in ("sbatch", "srun", "scontrol", "sinfo") if not shutil.which(name)]
    if missing:
        raise ConfigError(
            f"config.SLURM.USE_SLURM: {', '.join(missing)} not found on PATH. Run the command "
            f"where jobs are submitted, or without config.SLURM.USE_SLURM to run it here."
        )


def has_gpus(partition: str) -> bool:
    where = ["-p", partition] if partition else []
    return "gpu" in ask("sinfo", "-h", "-o", "%G", *where)


@dataclass(frozen=True)
class JobState:
    name: str  # RUNNING, PENDING, COMPLETED, ...; "" if SLURM has forgotten it
    status: int = 0
    reason: str = ""

    @property
    def ended(self) -> bool:
        return self.name in ENDED


def job_state(job: str) -> JobState:
    """Ask the controller; the accounting once the controller has dropped the job."""
    try:
        text = ask("scontrol", "show", "job", "-o", job)
    except LaunchError as error:
        if "Invalid job id" not in str(error):
            raise  # the controller may be restarted
        return _accounted(job)
    status, _, number = _value(text, "ExitCode").partition(":")
    return JobState(
        _value(text, "JobState"), int(status) or _killed(number), _value(text, "Reason")
    )


def _accounted(job: str) -> JobState:
    try:
        lines = ask("sacct", "-X", "-n", "-P", "-o", "State,ExitCode", "-j", job).splitlines()
    except (LaunchError, OSError):
        return JobState("")
    if not lines:
        return JobState("")
    state, _, code = lines[-1].partition("|")
    status, _, number = code.partition(":")
    return JobState(state.split()[0], int(status) or _killed(number))


def _value(text: str, key: str) -> str:
    found = re.search(rf"\b{key}=(\S*)", text)
    return found.group(1) if found else ""


def _killed(number: str) -> int:
    return 128 + int(number) if number.isdigit() and int(number) else 0
