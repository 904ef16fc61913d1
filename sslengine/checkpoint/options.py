"""`config.CHECKPOINT`: where a run lives and how often it is saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sslengine.config.sections import iterations, one_of, section


@dataclass
class BestOptions:
    # A metric of the manifests' results: test.accuracy_list_meter.top_1.0, train.loss, ...
    METRIC: str = ""
    # Which is better, the largest (max) or the smallest (min)?
    MODE: str = "max"

    def check(self) -> Iterator[str]:
        yield from one_of(self, "MODE", "max", "min")
        if self.METRIC and not self.METRIC.startswith(("train.", "test.")):
            yield (
                f"METRIC: expected train.<metric> or test.<metric>, by the names in "
                f"metrics.jsonl, got {self.METRIC!r}."
            )


@section("CHECKPOINT")
@dataclass
class CheckpointOptions:
    # The run's folder: checkpoints, metrics, logs. If it is not set: runs/<name of the config>.
    DIR: str = "."
    # Runs under DIR/<RUN_ID>, so that several may share one DIR.
    APPEND_DISTR_RUN_ID: bool = False
    # Resume from the newest checkpoint in DIR.
    AUTO_RESUME: bool = True
    # Train phases between two checkpoints; -1: only the last.
    CHECKPOINT_FREQUENCY: int = 1
    # Steps between two checkpoints; -1: none within a phase.
    CHECKPOINT_ITER_FREQUENCY: int = iterations(-1)
    # Checkpoints to keep; -1: all. The newest is always kept.
    KEEP_LAST: int = -1
    # Of those that are older, keep every so many of all saves; -1: none.
    KEEP_EVERY: int = -1
    # And the best, to which `best.torch` then points.
    BEST: BestOptions = field(default_factory=BestOptions)
    # Train again over a run that is complete.
    OVERWRITE_EXISTING: bool = False
    # Of a sharded run: at the end also one file with all weights, as VISSL reads it. Rank 0
    # has to hold them in host memory.
    WHOLE_AT_END: bool = True
    # Continue although the model or the method has changed since.
    ALLOW_CHANGED_CONFIG: bool = False
    # 2: resume from the last but one, and so on.
    LATEST_CHECKPOINT_RESUME_FILE_NUM: int = 1

    def check(self) -> Iterator[str]:
        if not self.DIR.strip():
            yield (
                "DIR: it is empty (a shell variable that is not set?). Give the folder of the run; "
                "or leave DIR away: runs/<name of the config>."
            )
        for key in (
            "CHECKPOINT_FREQUENCY",
            "CHECKPOINT_ITER_FREQUENCY",
            "KEEP_LAST",
            "KEEP_EVERY",
        ):
            if getattr(self, key) == 0:
                yield f"{key}: expected a positive number, or -1; got 0."
        if self.LATEST_CHECKPOINT_RESUME_FILE_NUM < 1:
            yield "LATEST_CHECKPOINT_RESUME_FILE_NUM: expected 1 or more."
