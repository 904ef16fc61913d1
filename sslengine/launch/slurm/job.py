"""What a task of a job does: the ranks of its node, and the queue again if there is more to do.

A job is told SIGUSR2 before its time is over, and (by many clusters) when it is preempted: the
ranks save, then the first node puts the job, under its id, into the queue again. SIGTERM alone is
scancel: the ranks save, and that is the end.
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
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.errors import LaunchError, Preempted, SSLEngineError
from sslengine.launch.folder import run_folder
from sslengine.launch.options import SlurmOptions
from sslengine.launch.plan import Plan
from sslengine.launch.slurm.cluster import ask
from sslengine.launch.slurm.lives import begin_life, lives_without_progress
from sslengine.launch.started import Meeting, first_host, tries
from sslengine.registry import import_dotted

_AGAIN = (signal.SIGUSR1, signal.SIGUSR2)
_SIGNAL_COMES = 10.0  # seconds from one node's to another's
_END_COMES = 300.0  # seconds in which a job that was put into the queue again is ended


@dataclass
class Job:
    """Called by submitit in each task; there is one a node."""

    run: Resolved
    folder: str  # where the command was given: relative paths begin there
    job_folder: str
    _told: set[int] = field(default_factory=set)

    def __call__(self) -> None:
        for number in (*_AGAIN, signal.SIGTERM):
            signal.signal(number, self._note)
        # submitit logs each SIGCONT; what the agent raises meanwhile, logging would swallow.
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        os.chdir(self.folder)
        sys.path.append(self.folder)  # what was not copied; what was comes first
        try:
            self._run_node(os.environ)
        except Preempted as told:
            _say(str(told))
            sys.exit(self._queue_again(os.environ))
        except SSLEngineError as error:
            _say(f"error: {error}")
            sys.exit(1)

    def checkpoint(self) -> Any:
        """For submitit, which hears the signals until this does: the same job again."""
        os.umask(0o077)  # it writes the job's file again, and ends
        return import_dotted("submitit.helpers:DelayedSubmission")(self)

    def _run_node(self, environment: Mapping[str, str]) -> None:
        startup.begin()
        plan = self._plan(environment)
        print(f"launch: {plan.text}", flush=True)  # noqa: T201
        if plan.node == 0:
            begin_life(
                Path(self.job_folder), environment["SLURM_JOB_ID"], run_folder(self.run.config)
            )
        import_dotted("sslengine.launch.local:run_node")(self.run, plan)  # torch is imported here

    def _plan(self, environment: Mapping[str, str]) -> Plan:
        job, node = environment["SLURM_JOB_ID"], int(environment["SLURM_NODEID"])
        life = environment.get("SLURM_RESTART_COUNT", "0")
        where = f"node {node} of {self.run.config.DISTRIBUTED.NUM_NODES}"
        return Plan(
            "node",
            f"job {job} of SLURM, {where}" + (f", life {int(life) + 1}" if life != "0" else ""),
            node=node,
            meeting=Meeting(
                first_host(environment["SLURM_JOB_NODELIST"]),
                tries(read(self.run.config, SlurmOptions).PORT_ID),
                f"job {job}.{life}",
            ),
        )

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._told.add(number)
        # While there are ranks, an agent hears the signals and passes them on; this comes before.
        if signal.getsignal(number) == self._note:
            raise Preempted(f"stopped by {signal.Signals(number).name} before the ranks were there")

    def _queue_again(self, environment: Mapping[str, str]) -> int:
        """The status to end with, if this is not ended from outside."""
        _clear_up()
        for number in _AGAIN:
            signal.signal(number, lambda number, frame: self._told.add(number))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        began = time.monotonic()
        while not self._told and time.monotonic() - began < _SIGNAL_COMES:
            time.sleep(0.1)  # the ranks may have agreed to stop before this node was told
        if self._told.isdisjoint(_AGAIN):
            return os.EX_TEMPFAIL
        if environment["SLURM_NODEID"] == "0":
            try:
                self._requeue(environment["SLURM_JOB_ID"])
            except LaunchError as error:
                _say(f"error: {error}")
                return os.EX_TEMPFAIL
        # Not to end by itself: SLURM might take it for the job's end, or end the first node.
        time.sleep(_END_COMES)
        return os.EX_TEMPFAIL

    def _requeue(self, job: str) -> None:
        most = read(self.run.config, SlurmOptions).MAX_LIVES_WITHOUT_PROGRESS
        lives = lives_without_progress(Path(self.job_folder), job, run_folder(self.run.config))
        if lives >= most:
            raise LaunchError(
                f"job {job} has been started {lives} times without coming to a new checkpoint, "
                f"and is not put into the queue again. Give it more time (config.SLURM.TIME_HOURS, "
                f"TIME_MINUTES) or save earlier (config.SLURM.SIGNAL_SECONDS, "
                f"config.CHECKPOINT.CHECKPOINT_ITER_FREQUENCY)."
            )
        _say(f"job {job} goes into the queue again")  # before: it may end this process at once
        ask("scontrol", "requeue", job)


def _clear_up() -> None:
    """What this process shared with its ranks. It may now be ended without a chance to do so, and
    multiprocessing's helper would report what is left as leaked."""
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
