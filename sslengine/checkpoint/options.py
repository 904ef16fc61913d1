"""`config.CHECKPOINT`: the run's folder and how often the run is saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sslengine.config.ranges import at_least, choice
from sslengine.config.sections import section
from sslengine.dotted import full_metric_name


@dataclass
class BestOptions:
    # The metric that decides: test.accuracy_list_meter.top_1.0, train.loss, online.knn20, ...
    METRIC: str = ""
    # Is a higher (max) or a lower (min) value better?
    MODE: str = choice("max", "min")

    def check(self) -> Iterator[str]:
        if self.METRIC and not self.metric.startswith(("train.", "test.")):
            yield (
                f"METRIC: expected train.<metric>, test.<metric> or online.<metric>, by the names "
                f"in metrics.jsonl; got {self.METRIC!r}."
            )

    @property
    def metric(self) -> str:
        """Return METRIC by its full name."""
        return full_metric_name(self.METRIC)


@section("CHECKPOINT")
@dataclass
class CheckpointOptions:
    # The run's folder: checkpoints, metrics, logs. If it is not set: runs/<name of the config>.
    DIR: str = "."
    # Use DIR/<RUN_ID> as the run's folder, so that several runs may share one DIR.
    APPEND_DISTR_RUN_ID: bool = False
    # Resume from the newest checkpoint in DIR.
    AUTO_RESUME: bool = True
    # Train phases between two checkpoints; -1: only the last.
    CHECKPOINT_FREQUENCY: int = at_least(1, 1, also=-1)
    # Steps between two checkpoints; -1: none within a phase.
    CHECKPOINT_ITER_FREQUENCY: int = at_least(1, -1, also=-1)
    # Checkpoints to keep; -1: all. The newest is always kept.
    KEEP_LAST: int = at_least(1, -1, also=-1)
    # Of older checkpoints, keep each whose number is a multiple of this; -1: none.
    KEEP_EVERY: int = at_least(1, -1, also=-1)
    # Keep the best checkpoint too; `best.torch` points to it.
    BEST: BestOptions = field(default_factory=BestOptions)
    # Move a complete run in DIR (without AUTO_RESUME: any run) to `earlier` and train again.
    OVERWRITE_EXISTING: bool = False
    # At the end of a sharded run, also write one file with all weights, as VISSL reads it. Rank 0
    # holds them in host memory.
    WHOLE_AT_END: bool = True
    # At the end of a run, write DIR/weights: the trunk for timm, transformers and lightly, or in
    # the nearest format that it has.
    EXPORT_AT_END: bool = True
    # Write the page of the run, report.html, at its end.
    REPORT_AT_END: bool = True
    # Resume although the model or the method has changed since the last start.
    ALLOW_CHANGED_CONFIG: bool = False
    # Which checkpoint to resume from: 1 is the newest, 2 the one before it, and so on.
    LATEST_CHECKPOINT_RESUME_FILE_NUM: int = at_least(1, 1)

    def check(self) -> Iterator[str]:
        if not self.DIR.strip():
            yield (
                "DIR: it is empty (a shell variable that is not set?). Give the folder of the run; "
                "or omit DIR: runs/<name of the config>."
            )
