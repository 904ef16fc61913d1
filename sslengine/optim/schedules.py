"""A schedule: a curve, and whether it is followed step by step or epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from sslengine.config.sections import beside, named, one_of, with_chosen
from sslengine.errors import ConfigError
from sslengine.optim.curves import PER_EPOCH, Curve, build_curve
from sslengine.registry import SCHEDULERS

# Fields of SchedulerOptions that are not a scheduler's.
NO_ARGUMENTS = ("name", "update_interval", "args", "auto_lr_scaling", "peak")


@dataclass
class AutoLrScaling:
    # Let the learning rate follow the batch size.
    auto_scale: bool = False
    # The learning rate at base_lr_batch_size.
    base_value: float = 0.1
    # The batch size for which base_value is meant.
    base_lr_batch_size: int = 256
    # linear, or sqrt of the ratio of the batch sizes.
    scaling_type: str = "linear"
    # Where a linear warm-up begins: one_node, at the learning rate of one node's batch; as_written,
    # at its start_value. One that is written to begin at 0 does so in any case.
    warmup_start: str = "one_node"

    def check(self) -> Iterator[str]:
        yield from one_of(self, "scaling_type", "linear", "sqrt")
        yield from one_of(self, "warmup_start", "one_node", "as_written")
        if self.base_lr_batch_size < 1:
            yield f"base_lr_batch_size: expected 1 or more, got {self.base_lr_batch_size}."


@beside(SCHEDULERS, "name")
@dataclass
class SchedulerOptions:
    """A scheduler; its arguments stand beside its name."""

    # constant, linear, cosine, multistep, composite, ...
    name: str = named(SCHEDULERS, "")
    # step, epoch, or null: what suits the scheduler.
    update_interval: str | None = None
    # The largest value of the whole schedule, whatever its name, of all parts of a composite: every
    # value is scaled with it. It wins over the auto_lr_scaling of an earlier file. null: the values
    # are as they stand.
    peak: float | None = None
    # Arguments of a scheduler that is named by a dotted path.
    args: dict[str, Any] = field(default_factory=dict)
    auto_lr_scaling: AutoLrScaling = field(default_factory=AutoLrScaling)

    def check(self) -> Iterator[str]:
        yield from one_of(self, "update_interval", "step", "epoch", None)
        if self.peak is not None and not 0 < self.peak < math.inf:
            yield f"peak: expected a number above 0, got {self.peak}."


@dataclass(frozen=True)
class Schedule:
    """`value(where)` for `where` in [0, 1); set again every "step" or every "epoch"."""

    value: Curve
    interval: str


def schedule(name: str, **keys: Any) -> SchedulerOptions:
    """Options of one that is made in Python."""
    return with_chosen(SchedulerOptions, [name])(name=name, **keys)


def build_schedule(options: SchedulerOptions, num_epochs: float) -> Schedule:
    """A mistake raises a ConfigError whose text begins with the key."""
    curve = build_curve(options.name, _arguments(options), num_epochs)
    own_interval = "epoch" if options.name in PER_EPOCH else "step"
    return Schedule(curve, options.update_interval or own_interval)


def _arguments(options: SchedulerOptions) -> dict[str, Any]:
    """Those that are set and that the scheduler knows, and `args`."""
    known = SCHEDULERS.parameters(options.name, "name")
    names = [each.name for each in fields(options) if each.name not in NO_ARGUMENTS]
    offered = {name: getattr(options, name) for name in names}
    chosen = {
        name: value for name, value in offered.items() if name in known and value not in (None, [])
    }
    return {**chosen, **options.args}


def schedule_problems(options: SchedulerOptions, num_epochs: float, path: str) -> Iterator[str]:
    """What is wrong with a schedule, told with its key path."""
    try:
        build_schedule(options, num_epochs)
    except ConfigError as error:
        yield f"{path}.{error}"
