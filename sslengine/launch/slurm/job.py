"""A task of a SLURM job: it runs the ranks of its node and requeues an unfinished job.

SLURM sends SIGUSR2 before a job's time limit and, on many clusters, when it preempts the job: the
ranks save, then the first node requeues the job under its id. SIGTERM alone comes from scancel:
the ranks save, and the job ends.
"""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from sslengine import startup
from sslengine.checkpoint.contents import run_folder
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.errors import LaunchError, Preempted, SSLEngineError
from sslengine.launch.options import SlurmOptions
from sslengine.launch.plan import Plan, first_host
from sslengine.launch.slurm.cluster import ask
from sslengine.registry import import_dotted

_REQUEUE = (signal.SIGUSR1, signal.SIGUSR2)
_PORTS = 16  # which jobs use, from SLURM.PORT_ID
# In the job's folder, one line per start: the iteration of the newest checkpoint at that time.
_LIVES = "{}_lives.txt"
_SIGNAL_DELAY = 10.0  # seconds at most between two nodes' signals
_END_DELAY = 300.0  # seconds at most until SLURM ends a job that was requeued


@dataclass
class Job:
    """Run in each task of a job: submitit calls it; there is one task per node."""

    run: Resolved
    folder: str  # the command's working folder, for relative paths
    job_folder: str
    _signals: set[int] = field(default_factory=set)

    def __call__(self) -> None:
        for number in (*_REQUEUE, signal.SIGTERM):
            signal.signal(number, self._note)
        # submitit logs each SIGCONT, and logging would swallow an exception of the agent.
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        os.chdir(self.folder)
        sys.path.append(self.folder)  # for modules that were not copied
        try:
            self._run_node()
        except Preempted as preempted:
            _say(str(preempted))
            sys.exit(self._queue_again())
        except SSLEngineError as error:
            _say(f"error: {error}")
            sys.exit(1)

    def checkpoint(self) -> Any:
        """Submit this job again: for submitit, which handles signals until `__call__` runs."""
        return import_dotted("submitit.helpers:DelayedSubmission")(self)

    def _run_node(self) -> None:
        startup.begin()
        plan = self._plan(os.environ)
        print(f"launch: {plan.text}", flush=True)  # noqa: T201
        if plan.node == 0:
            begin_life(
                Path(self.job_folder), os.environ["SLURM_JOB_ID"], run_folder(self.run.config)
            )
        import_dotted("sslengine.launch.local:run_node")(self.run, plan)  # torch is imported here

    def _plan(self, environment: Mapping[str, str]) -> Plan:
        job, node = environment["SLURM_JOB_ID"], int(environment["SLURM_NODEID"])
        life = environment.get("SLURM_RESTART_COUNT", "0")
        where = f"node {node} of {self.run.config.DISTRIBUTED.NUM_NODES}"
        # Jobs of an array that share a node have following numbers, and so different ports.
        port = read(self.run.config, SlurmOptions).PORT_ID + int(job) % _PORTS
        return Plan(
            "node",
            f"SLURM job {job}, {where}" + (f", start {int(life) + 1}" if life != "0" else ""),
            node=node,
            endpoint=f"{first_host(environment['SLURM_JOB_NODELIST'])}:{port}",
            run_id=f"job {job}.{life}",
        )

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.add(number)
        # Once there are ranks, the agent handles signals and passes them on.
        if signal.getsignal(number) == self._note:
            raise Preempted(f"stopped by {signal.Signals(number).name} before ranks were started")

    def _queue_again(self) -> int:
        """Requeue the job if that is due. Returns the exit status, unless SLURM ends this first."""
        # Release what this process shares with its ranks: SLURM may end it before it exits, and
        # multiprocessing's helper would then report leaked objects.
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        for number in _REQUEUE:
            signal.signal(number, lambda number, frame: self._signals.add(number))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        began = time.monotonic()
        while not self._signals and time.monotonic() - began < _SIGNAL_DELAY:
            time.sleep(0.1)  # the ranks may have agreed to stop before this node got its signal
        if self._signals.isdisjoint(_REQUEUE):
            return os.EX_TEMPFAIL
        if os.environ["SLURM_NODEID"] == "0":
            try:
                self._requeue(os.environ["SLURM_JOB_ID"])
            except LaunchError as error:
                _say(f"error: {error}")
                return os.EX_TEMPFAIL
        # If a node ended by itself, SLURM might end the job, or the first node, before the requeue.
        time.sleep(_END_DELAY)
        return os.EX_TEMPFAIL

    def _requeue(self, job: str) -> None:
        most = read(self.run.config, SlurmOptions).MAX_LIVES_WITHOUT_PROGRESS
        lives = count_lives_without_progress(
            Path(self.job_folder), job, run_folder(self.run.config)
        )
        if lives >= most:
            raise LaunchError(
                f"job {job} has been started {lives} times without a new checkpoint, and is not "
                f"requeued. Give it more time (config.SLURM.TIME_HOURS, TIME_MINUTES) or save "
                f"earlier (config.SLURM.SIGNAL_SECONDS, "
                f"config.CHECKPOINT.CHECKPOINT_ITER_FREQUENCY)."
            )
        _say(f"job {job} is requeued")  # printed before: requeue may end this process at once
        ask("scontrol", "requeue", job)


def begin_life(job_folder: Path, job: str, folder: Path) -> None:
    """Note a start of the job, with what the run has reached."""
    with (job_folder / _LIVES.format(job)).open("a") as lives:
        lives.write(f"{_reached(folder)}\n")


def count_lives_without_progress(job_folder: Path, job: str, folder: Path) -> int:
    """Count the last starts in a row, with this one, that made no later checkpoint."""
    file = job_folder / _LIVES.format(job)
    lives = [int(line) for line in file.read_text().split()] if file.exists() else []
    now = _reached(folder)
    count = 0
    while count < len(lives) and lives[-1 - count] >= now:
        count += 1
    return count


def _reached(folder: Path) -> int:
    """Return the iteration of the furthest checkpoint, sharded or not; 0 if there is none."""
    from sslengine.checkpoint.retention import saved  # imports torch, in the job alone

    return max((each.iteration for each in saved(folder / "checkpoints")), default=0)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
