"""A user of the cluster: gives commands, looks at jobs, reads results."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests import warm
from tests.integration.command import COMMAND
from tests.slurm.cluster import Cluster

PATIENCE = 240.0  # seconds; a rank takes up to thirty to start on a busy machine
# A plugin in the user's folder: drags a job's first life out until something ends it.
SLOW = """
import os
import time

from sslengine.hooks.events import Hook
from sslengine.registry import register_hook


@register_hook("slow_first_life")
class SlowFirstLife(Hook):
    def __init__(self, seconds=0.0):
        self.seconds = seconds

    def on_step(self, task):
        if "SLURM_JOB_ID" in os.environ and "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(self.seconds)
"""


@dataclass
class User:
    folder: Path
    cluster: Cluster

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return warm.run(
            [*COMMAND, *arguments], cwd=self.folder, env=self.cluster.environment, timeout=PATIENCE
        )

    def submit(self, *arguments: str) -> str:
        """The job's id."""
        done = self.command("config.SLURM.USE_SLURM=true", *arguments)
        assert done.returncode == 0, done.stderr
        found = re.search(r"launch: SLURM job (\d+)", done.stdout)
        assert found, done.stdout
        return found.group(1)

    def wait_for_state(self, job: str, *states: str) -> dict[str, str]:
        until = time.monotonic() + PATIENCE
        while (shown := self.cluster.show(job))["JobState"] not in states:
            assert time.monotonic() < until, f"{shown}\n{self.job_log(job)}\n{self.cluster.logs()}"
            time.sleep(0.5)
        return shown

    def limit_time(self, job: str, seconds_from_now: float) -> None:
        """A time limit, in whole minutes, that is over within so many seconds or a bit sooner."""
        ran = self.cluster.show(job)["RunTime"].split(":")
        minutes, seconds = 60 * int(ran[0]) + int(ran[1]), int(ran[2])
        limit = minutes + int((seconds + seconds_from_now) // 60)
        self.cluster.run("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")

    def wait_for_restart(self, job: str) -> None:
        until = time.monotonic() + PATIENCE
        while (shown := self.cluster.show(job))["Restarts"] == "0":
            assert shown["JobState"] in ("RUNNING", "COMPLETING"), f"{shown}\n{self.job_log(job)}"
            assert time.monotonic() < until, f"{shown}\n{self.job_log(job)}"
            time.sleep(0.2)

    def wait_for_steps(self, job: str, results: str, count: int = 2) -> None:
        until = time.monotonic() + PATIENCE
        while len(self.losses(results)) < count:
            state = self.cluster.show(job)["JobState"]
            waiting = time.monotonic() < until and state in ("PENDING", "CONFIGURING", "RUNNING")
            assert waiting, f"{state}\n{self.job_log(job)}\n{self.cluster.logs()}"
            time.sleep(0.5)

    def job_log(self, job: str) -> str:
        files = sorted([*self.folder.glob(f"jobs/*/{job}_*log.*"), *self.folder.glob("*.log")])
        return "\n".join(f"--- {file.name}\n{file.read_text()}" for file in files)

    def losses(self, results: str) -> list[float]:
        """Of every step in order, as the run's last life left them."""
        file = self.folder / results / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        steps = [json.loads(line) for line in lines if line.endswith("}")]
        by_step = {each["iteration"]: each["loss"] for each in steps if each["kind"] == "step"}
        return [by_step[step] for step in sorted(by_step)]
