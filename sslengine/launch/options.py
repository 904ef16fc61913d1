"""`config.SLURM`: VISSL's keys for jobs on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.sections import section


@section("SLURM")
@dataclass
class SlurmOptions:
    USE_SLURM: bool = False
    NAME: str = "sslengine"
    COMMENT: str = "sslengine job"
    PARTITION: str = ""
    LOG_FOLDER: str = "."
    TIME_HOURS: int = 72
    TIME_MINUTES: int = 0
    CONSTRAINT: str = ""
    MEM_GB: int = 250
    PORT_ID: int = 40050
    NUM_CPU_PER_PROC: int = 8
    ADDITIONAL_PARAMETERS: dict[str, Any] = field(default_factory=dict)

    def check(self) -> Iterator[str]:
        if self.USE_SLURM:
            yield (
                "USE_SLURM: submitting jobs is not available yet. Inside a job of your own, "
                "start the command with torchrun."
            )
