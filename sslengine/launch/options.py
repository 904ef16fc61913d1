"""`config.SLURM`: VISSL's keys for jobs on a cluster, and three of our own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.sections import section


@section("SLURM")
@dataclass
class SlurmOptions:
    # Submit a job instead of running here.
    USE_SLURM: bool = False
    # Of the job, as the queue shows it.
    NAME: str = "sslengine"
    # To the job, for those who look at the queue.
    COMMENT: str = "sslengine job"
    # Empty: the cluster's default one.
    PARTITION: str = ""
    # Each submission makes a folder of its own in it: log, config, a copy of the code. All nodes
    # must see it.
    LOG_FOLDER: str = "."
    # A longer run saves before the time is over, and continues in the same job.
    TIME_HOURS: int = 72
    # Added to TIME_HOURS.
    TIME_MINUTES: int = 0
    # Features that a node must have: volta32gb, or [a|b].
    CONSTRAINT: str = ""
    # Of each node.
    MEM_GB: int = 250
    # Where the nodes of a job meet; if it is taken, one of the next fifteen.
    PORT_ID: int = 40050
    # CPU cores of each rank.
    NUM_CPU_PER_PROC: int = 8
    # More options of sbatch, without the dashes: {account: vision, exclude: node7}.
    ADDITIONAL_PARAMETERS: dict[str, Any] = field(default_factory=dict)
    # Stay, print the log, and end with the job's status.
    WAIT: bool = False
    # Seconds before the end of the time at which the job is told to save.
    SIGNAL_SECONDS: int = 120
    # Lives in a row that may end without a new checkpoint; then the job is not queued again.
    MAX_LIVES_WITHOUT_PROGRESS: int = 3

    @property
    def minutes(self) -> int:
        return 60 * self.TIME_HOURS + self.TIME_MINUTES

    def check(self) -> Iterator[str]:
        for key in ("NUM_CPU_PER_PROC", "SIGNAL_SECONDS", "MAX_LIVES_WITHOUT_PROGRESS"):
            if getattr(self, key) < 1:
                yield f"{key}: expected 1 or more, got {getattr(self, key)}."
        for key in ("TIME_HOURS", "TIME_MINUTES", "MEM_GB"):
            if getattr(self, key) < 0:
                yield f"{key}: expected 0 or more, got {getattr(self, key)}."
        if not 1024 <= self.PORT_ID <= 65000:
            yield f"PORT_ID: expected 1024 to 65000, got {self.PORT_ID}."
        if 60 * self.minutes <= self.SIGNAL_SECONDS:
            yield (
                f"TIME_HOURS, TIME_MINUTES: {self.minutes} minutes are no longer than "
                f"SIGNAL_SECONDS={self.SIGNAL_SECONDS}, so the job would be told to save at once."
            )
