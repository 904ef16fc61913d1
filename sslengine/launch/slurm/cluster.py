"""Ask SLURM's commands about partitions and jobs, and check that SLURM is installed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass

from sslengine.errors import ConfigError, LaunchError, listing, nearest

_ANSWER = 60  # seconds

# Final states of a job.
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "TIMEOUT",
}  # fmt: skip


def ask(*command: str) -> str:
    """The output of one of SLURM's commands; LaunchError with its message if it fails."""
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


def check_partition(wanted: str) -> None:
    """Raise ConfigError if the partition does not exist, or if there is no default one."""
    marked = ask("sinfo", "-h", "-a", "-o", "%P").split()
    names = sorted({each.rstrip("*") for each in marked})
    if not wanted and not any(each.endswith("*") for each in marked):
        raise ConfigError(
            f"config.SLURM.PARTITION: this cluster has no default partition; name one of "
            f"{listing(names)}."
        )
    for each in wanted.split(",") if wanted else ():
        if each not in names:
            raise ConfigError(
                f"config.SLURM.PARTITION: there is no {each!r}. {nearest(each, names)} "
                f"This cluster has {listing(names)}."
            )


def check_nodes(partition: str, count: int, cpus: int, gigabytes: int) -> None:
    """Check for enough nodes of this size: some clusters queue forever a job that none can run."""
    nodes: dict[str, tuple[int, int]] = {}
    where = ["-p", partition] if partition else []
    for line in ask("sinfo", "-h", "-N", "-o", "%P|%N|%c|%m", *where).splitlines():
        each, name, has_cpus, megabytes = line.strip().split("|")
        if partition or each.endswith("*"):
            nodes[name] = int(has_cpus.rstrip("+")), int(megabytes.rstrip("+"))
    fit = [1 for has, mb in nodes.values() if has >= cpus and (mb >= 1024 * gigabytes or mb <= 1)]
    if nodes and len(fit) < count:
        most = [max(values) for values in zip(*nodes.values(), strict=True)]
        raise ConfigError(
            f"config.SLURM asks {count} node{'s' if count > 1 else ''} (config.DISTRIBUTED."
            f"NUM_NODES) for {gigabytes} GB each (config.SLURM.MEM_GB) and {cpus} CPUs each "
            f"(config.SLURM.NUM_CPU_PER_PROC x config.DISTRIBUTED.NUM_PROC_PER_NODE), and "
            f"{len(fit) or 'none'} of the partition's {len(nodes)} nodes can provide that: they "
            f"have at most {most[1] // 1024} GB and {most[0]} CPUs."
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
    """From the controller; from the accounting once the controller has dropped the job."""
    try:
        text = ask("scontrol", "show", "job", "-o", job)
    except LaunchError as error:
        if "Invalid job id" not in str(error):
            raise
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
