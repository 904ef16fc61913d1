"""Submit runs to SLURM: one job, or an array of jobs for a sweep.

A job runs from a copy of the code, so that later edits do not change one that waits in the queue:

    code/                   in the job's folder; its processes import from here
        sslengine/
        my_plugin.py        modules of config.PLUGINS, unless they are installed
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import io
import shlex
import shutil
import sys
import uuid
from collections.abc import Iterable, Sequence
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
from sslengine.launch.plan import is_one_of_several
from sslengine.launch.slurm.cluster import check_installed, follow, has_gpus
from sslengine.launch.slurm.job import Job
from sslengine.monitor.run_record import COPY_NOTE, code_version
from sslengine.trust import is_installed

_UNLIMITED = 10**6  # requeues that submitit allows; job.py limits them by progress
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.torch", ".git", ".venv")


def submit(runs: Sequence[Resolved]) -> int:
    """Return the exit status: with SLURM.WAIT 1 if a job fails."""
    options = _same_for_all(runs)
    _check(runs)
    folder = _make_folder(options)
    try:
        code = copy_code(folder, (name for run in runs for name in run.config.PLUGINS))
        for index, run in enumerate(runs):
            (folder / f"config_{index}.yaml").write_text(show(run))
        jobs = _send(runs, options, folder, code)
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)  # nothing is in the queue
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
    """Return the SLURM options, after checking that all runs ask for the same resources."""
    for section in ("SLURM", "DISTRIBUTED", "MACHINE"):
        if any(run.config[section] != runs[0].config[section] for run in runs):
            raise ConfigError(
                f"config.{section}: the runs of a sweep become one array of jobs, which all have "
                f"the same resources. Submit runs with other resources by separate commands."
            )
    return read(runs[0].config, SlurmOptions)


def _check(runs: Sequence[Resolved]) -> None:
    """Check all that can be known before anything is written."""
    if is_one_of_several():
        raise ConfigError(
            "config.SLURM.USE_SLURM: each of the processes that were started together would "
            "submit a job. Start the command once; or omit USE_SLURM to run in this job."
        )
    check_installed()
    for run in runs:
        expect_run_folder(run.config)


def _make_folder(options: SlurmOptions) -> Path:
    """Make the job's folder. Its name has no job id: the code is copied before SLURM gives one.

    The user alone can open it: submitit's pickles hold environment variables.
    """
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = "".join(each if each.isalnum() or each in "-_." else "_" for each in options.NAME)
    root = Path(options.LOG_FOLDER).expanduser().resolve()
    folder = root / f"{name}-{now}-{uuid.uuid4().hex[:6]}"
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise ConfigError(f"config.SLURM.LOG_FOLDER: cannot make {folder}: {error}") from error
    return folder


def copy_code(folder: Path, plugins: Iterable[str] = ()) -> Path:
    """Copy into `folder/code`, and return that."""
    code = folder / "code"
    package = Path(__file__).resolve().parents[2]
    shutil.copytree(package, code / package.name, ignore=_LEFT_OUT)
    (code / package.name / COPY_NOTE).write_text(f"{code_version(package) or 'unknown'}\n")
    for name in sorted({each.partition(".")[0] for each in plugins} - {package.name}):
        _copy_module(name, code)
    return code


def _copy_module(name: str, code: Path) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or is_installed(Path(spec.origin)):
        return
    origin = Path(spec.origin).resolve()
    if origin.name == "__init__.py":
        shutil.copytree(origin.parent, code / name, ignore=_LEFT_OUT)
    else:
        shutil.copy(origin, code)


def _send(runs: Sequence[Resolved], options: SlurmOptions, folder: Path, code: Path) -> list[Any]:
    import submitit

    executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=_UNLIMITED)
    executor.update_parameters(**parameters(runs[0], options, code))
    printed = io.StringIO()  # submitit prints the errors that it also raises
    try:
        with contextlib.redirect_stderr(printed), executor.batch():  # one job, or an array
            jobs = [executor.submit(Job(run, str(Path.cwd()), str(folder))) for run in runs]
    except submitit.core.utils.FailedJobError as error:
        asked = [f"  config.SLURM.{key}: {value}" for key, value in runs[0].config.SLURM.items()]
        text = "\n".join([f"sbatch refuses the job: {error}", "The config asks for", *asked])
        raise LaunchError(text) from error
    sys.stderr.write(printed.getvalue())
    return jobs


def parameters(run: Resolved, options: SlurmOptions, code: Path) -> dict[str, Any]:
    """Return the job's options by submitit's names."""
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
