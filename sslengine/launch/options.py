"""`config.SLURM`: jobs on a cluster. All but the last three keys are VISSL's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.ranges import at_least
from sslengine.config.sections import section


@section("SLURM")
@dataclass
class SlurmOptions:
    # Submit a job instead of running here.
    USE_SLURM: bool = False
    # Name of the job in the queue.
    NAME: str = "sslengine"
    # Comment of the job in the queue.
    COMMENT: str = "sslengine job"
    # Partition of the cluster; empty: its default partition.
    PARTITION: str = ""
    # Folder in which each submission creates a folder with log, config and a copy of the code. It
    # must be on a file system that all nodes share.
    LOG_FOLDER: str = "."
    # Time limit of the job. A longer run saves before the limit and resumes in the same job.
    TIME_HOURS: int = at_least(0, 72)
    # Added to TIME_HOURS.
    TIME_MINUTES: int = at_least(0, 0)
    # Features that a node must have: volta32gb, or [a|b].
    CONSTRAINT: str = ""
    # Memory of each node in GB.
    MEM_GB: int = at_least(0, 250)
    # Port of the nodes' rendezvous; it or one of the next fifteen, by the job's number.
    PORT_ID: int = at_least(1024, 40050, at_most=65000)
    # CPU cores per rank.
    NUM_CPU_PER_PROC: int = at_least(1, 8)
    # More options of sbatch, without the dashes: {account: vision, exclude: node7}.
    ADDITIONAL_PARAMETERS: dict[str, Any] = field(default_factory=dict)
    # Wait for the job, print its log, and exit with 0 if it has completed, else with 1.
    WAIT: bool = False
    # Seconds before the time limit at which the job gets the signal to save.
    SIGNAL_SECONDS: int = at_least(1, 120)
    # A job is not requeued after it has ended this many times in a row without a new checkpoint.
    MAX_LIVES_WITHOUT_PROGRESS: int = at_least(1, 3)

    @property
    def minutes(self) -> int:
        return 60 * self.TIME_HOURS + self.TIME_MINUTES

    def check(self) -> Iterator[str]:
        if 60 * self.minutes <= self.SIGNAL_SECONDS:
            yield (
                f"TIME_HOURS, TIME_MINUTES: {self.minutes} minutes are no longer than "
                f"SIGNAL_SECONDS={self.SIGNAL_SECONDS}, so the job would be signalled at once."
            )
