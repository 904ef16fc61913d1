"""Submit runs to SLURM: one job, or an array of jobs for a sweep."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import shlex
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from sslengine.checkpoint.contents import run_folder
from sslengine.config.options import DistributedOptions, MachineOptions
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.config.show import show
from sslengine.errors import ConfigError, LaunchError
from sslengine.launch.folder import expect_run_folder
from sslengine.launch.options import SlurmOptions
from sslengine.launch.slurm.cluster import (
    check_installed,
    check_nodes,
    check_partition,
    has_gpus,
)
from sslengine.launch.slurm.follow import follow
from sslengine.launch.slurm.job import Job
from sslengine.launch.slurm.snapshot import copy_code
from sslengine.launch.started import is_rank, started

_UNLIMITED = 10**6  # requeues that submitit allows; lives.py limits them by progress


def submit(runs: Sequence[Resolved]) -> int:
    """Returns the exit status: with SLURM.WAIT that of the first job that fails."""
    options = _same_for_all(runs)
    _check(runs, options)
    folder, parents = _make_folder(options)
    try:
        code = copy_code(folder, (name for run in runs for name in run.config.PLUGINS))
        for index, run in enumerate(runs):
            (folder / f"config_{index}.yaml").write_text(show(run))
        with _secret(folder):
            jobs = _send(runs, options, folder, code)
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)  # nothing is in the queue
        _remove_empty(parents)
        raise
    _report(jobs, runs, folder)
    if not options.WAIT:
        return 0
    try:
        return follow({str(job.job_id): [job.paths.stdout, job.paths.stderr] for job in jobs})
    except KeyboardInterrupt:
        print(f"\nthe job continues; to end it: scancel {_id(jobs)}")  # noqa: T201
        return 130


def _same_for_all(runs: Sequence[Resolved]) -> SlurmOptions:
    """The SLURM options, after checking that all runs ask for the same resources."""
    for section in ("SLURM", "DISTRIBUTED", "MACHINE"):
        if any(run.config[section] != runs[0].config[section] for run in runs):
            raise ConfigError(
                f"config.{section}: the runs of a sweep become one array of jobs, which all have "
                f"the same resources. Submit runs with other resources by separate commands."
            )
    return read(runs[0].config, SlurmOptions)


def _check(runs: Sequence[Resolved], options: SlurmOptions) -> None:
    """All checks that are possible before anything is written."""
    if is_rank(os.environ) or started(os.environ):
        raise ConfigError(
            "config.SLURM.USE_SLURM: each of the processes that were started together would "
            "submit a job. Start the command once; or omit USE_SLURM to run in this job."
        )
    check_installed()
    check_partition(options.PARTITION)
    distributed = read(runs[0].config, DistributedOptions)
    cpus = options.NUM_CPU_PER_PROC * distributed.NUM_PROC_PER_NODE
    check_nodes(options.PARTITION, distributed.NUM_NODES, cpus, options.MEM_GB)
    for run in runs:
        expect_run_folder(run.config)


def _make_folder(options: SlurmOptions) -> tuple[Path, list[Path]]:
    """The job's folder, and the parent folders that were made for it, innermost first.

    Its name has no job id: the code must be copied before SLURM gives one.
    """
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = "".join(each if each.isalnum() or each in "-_." else "_" for each in options.NAME)
    root = Path(options.LOG_FOLDER).expanduser().resolve()
    folder = root / f"{name}-{now}-{uuid.uuid4().hex[:6]}"
    parents = list(takewhile(lambda each: not each.exists(), folder.parents))
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        _remove_empty(parents)
        raise ConfigError(f"config.SLURM.LOG_FOLDER: cannot make {folder}: {error}") from error
    return folder, parents


def _remove_empty(folders: Sequence[Path]) -> None:
    with contextlib.suppress(OSError):  # another submission may use it
        for folder in folders:
            folder.rmdir()


def _send(runs: Sequence[Resolved], options: SlurmOptions, folder: Path, code: Path) -> list[Any]:
    import submitit

    executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=_UNLIMITED)
    executor.update_parameters(**parameters(runs[0], options, code))
    printed = io.StringIO()  # submitit prints the errors that it also raises
    try:
        with contextlib.redirect_stderr(printed), executor.batch():  # one job, or an array
            jobs = [executor.submit(Job(run, str(Path.cwd()), str(folder))) for run in runs]
    except submitit.core.utils.FailedJobError as error:
        raise LaunchError(f"sbatch refuses the job: {error}\n{_asked(runs[0], options)}") from error
    sys.stderr.write(printed.getvalue())
    return jobs


@contextlib.contextmanager
def _secret(folder: Path) -> Iterator[None]:
    """Make submitit's pickles readable by the user alone: they hold environment variables.

    The folder is closed to others until the files have their modes. A umask would do the same,
    but SLURM would pass it to the job.
    """
    mode = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(0o700)
    yield
    for file in folder.glob("*.pkl"):
        file.chmod(0o600)
    folder.chmod(mode)


def _asked(run: Resolved, options: SlurmOptions) -> str:
    """The keys by which the job asks for resources, with their values."""
    distributed = read(run.config, DistributedOptions)
    ranks = distributed.NUM_PROC_PER_NODE
    keys = {
        "DISTRIBUTED.NUM_NODES": distributed.NUM_NODES,
        "SLURM.MEM_GB": options.MEM_GB,
        "SLURM.NUM_CPU_PER_PROC": f"{options.NUM_CPU_PER_PROC} for each of {ranks} ranks a node",
        "SLURM.TIME_HOURS": options.TIME_HOURS,
        "SLURM.TIME_MINUTES": options.TIME_MINUTES,
        "SLURM.PARTITION": options.PARTITION,
        "SLURM.CONSTRAINT": options.CONSTRAINT,
        "MACHINE.DEVICE": read(run.config, MachineOptions).DEVICE,
        "SLURM.ADDITIONAL_PARAMETERS": options.ADDITIONAL_PARAMETERS,
    }
    lines = [f"  config.{key}: {value}" for key, value in keys.items() if value not in ("", {})]
    return "\n".join(["The config asks for", *lines])


def parameters(run: Resolved, options: SlurmOptions, code: Path) -> dict[str, Any]:
    """The job's options by submitit's names."""
    distributed = read(run.config, DistributedOptions)
    processes = distributed.NUM_PROC_PER_NODE
    device = read(run.config, MachineOptions).DEVICE
    gpus = device == "gpu" or (device == "auto" and has_gpus(options.PARTITION))
    return {
        "job_name": options.NAME,
        "comment": options.COMMENT,
        "partition": options.PARTITION or None,
        "constraint": options.CONSTRAINT or None,
        "time": options.minutes,
        "nodes": distributed.NUM_NODES,
        "ntasks_per_node": 1,  # the elastic agent, which starts the ranks
        "cpus_per_task": options.NUM_CPU_PER_PROC * processes,
        "gpus_per_node": processes if gpus else None,
        "mem": f"{options.MEM_GB}GB",
        "signal_delay_s": options.SIGNAL_SECONDS,
        # chdir: Python searches the current folder first, and the original code may change there.
        "additional_parameters": {
            "requeue": True, **options.ADDITIONAL_PARAMETERS, "chdir": str(code),
        },
        "setup": [
            f"export PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}",
            # srun of SLURM 22.05 and later does not inherit it from the job.
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        ],
    }  # fmt: skip


def _report(jobs: Sequence[Any], runs: Sequence[Resolved], folder: Path) -> None:
    log = jobs[0].paths.stdout
    many = f", an array of {len(jobs)}" if len(jobs) > 1 else ""
    lines = [
        f"launch: SLURM job {_id(jobs)}{many}",
        f"  results  {run_folder(runs[0].config)}" + (" and the next" if many else ""),
        f"  logs     {folder}",
        f"  follow   tail -n +1 -F {shlex.quote(str(log))}",
        f"  end      scancel {_id(jobs)}",
    ]
    print("\n".join(lines), flush=True)  # noqa: T201
    for run in runs:
        for warning in run.warnings:
            print(f"warning: {warning}", file=sys.stderr)  # noqa: T201


def _id(jobs: Sequence[Any]) -> str:
    return str(jobs[0].job_id).partition("_")[0]
