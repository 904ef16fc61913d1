"""A schedule: a curve, and whether its value is set in every step or in every epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from sslengine.config.sections import named, one_of
from sslengine.errors import ConfigError
from sslengine.optim.curves import PER_EPOCH, Curve, build_curve
from sslengine.registry import SCHEDULERS

# Fields of SchedulerOptions that are not a scheduler's.
_NO_ARGUMENTS = ("name", "update_interval", "args", "auto_lr_scaling", "peak")


@dataclass
class AutoLrScaling:
    # Scale the learning rate with the batch size.
    auto_scale: bool = False
    # The learning rate at base_lr_batch_size.
    base_value: float = 0.1
    # The batch size to which base_value belongs.
    base_lr_batch_size: int = 256
    # linear in the ratio of the batch sizes, or sqrt of it.
    scaling_type: str = "linear"
    # The start of a linear warm-up. one_node: the learning rate of one node's batch; as_written:
    # its start_value. A start_value of 0 is never changed.
    warmup_start: str = "one_node"

    def check(self) -> Iterator[str]:
        yield from one_of(self, "scaling_type", "linear", "sqrt")
        yield from one_of(self, "warmup_start", "one_node", "as_written")
        if self.base_lr_batch_size < 1:
            yield f"base_lr_batch_size: expected 1 or more, got {self.base_lr_batch_size}."


@dataclass
class SchedulerOptions:
    """The arguments of all schedulers; each scheduler takes some of them."""

    # constant, linear, cosine, multistep, composite, ...
    name: str = named(SCHEDULERS, "")
    # step, epoch, or null: the scheduler's default.
    update_interval: str | None = None
    # The largest value of the whole schedule, also of a composite: all values are scaled so that
    # the largest is this. It overrides the auto_lr_scaling of an earlier file. null: no scaling.
    peak: float | None = None
    # constant: the value.
    value: float | None = None
    # linear, cosine, cosine_warm_restart: the first value. inverse_sqrt: the value after warm-up.
    start_value: float | None = None
    # linear, cosine, cosine_warm_restart: the last value.
    end_value: float | None = None
    # multistep, step: the values in order.
    values: list[float] = field(default_factory=list)
    # multistep: the epochs at which the next value starts.
    milestones: list[int] = field(default_factory=list)
    # polynomial, step_with_fixed_gamma: the first value.
    base_value: float | None = None
    # polynomial: the exponent.
    power: float | None = None
    # step_with_fixed_gamma: how many times the value is multiplied by gamma.
    num_decays: int | None = None
    # step_with_fixed_gamma: the factor.
    gamma: float | None = None
    # inverse_sqrt: the warm-up's share of training.
    warmup_interval_length: float | None = None
    # cosine_warm_restart: share of training between restarts.
    restart_interval_length: float | None = None
    # cosine_warm_restart: half or full waves.
    wave_type: str | None = None
    # cosine_warm_restart: the largest value of a wave, divided by that of the wave before.
    lr_multiplier: float | None = None
    # cosine_warm_restart: each wave starts at the value of a single cosine over the run.
    is_adaptive: bool | None = None
    # composite: the parts, each with its name and arguments.
    schedulers: list[dict[str, Any]] = field(default_factory=list)
    # composite: their shares of training, which sum to 1.
    lengths: list[float] = field(default_factory=list)
    # composite: rescaled or fixed, for each part.
    interval_scaling: list[str] = field(default_factory=list)
    # Other arguments of a custom scheduler.
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


def build_schedule(options: SchedulerOptions, num_epochs: float) -> Schedule:
    """Build the schedule; a mistake raises a ConfigError whose text starts with the key."""
    curve = build_curve(options.name, _arguments(options), num_epochs)
    own_interval = "epoch" if options.name in PER_EPOCH else "step"
    return Schedule(curve, options.update_interval or own_interval)


def _arguments(options: SchedulerOptions) -> dict[str, Any]:
    """Return the arguments that are set and that the scheduler has, and `args`."""
    known = SCHEDULERS.parameters(options.name, "name")
    names = [each.name for each in fields(options) if each.name not in _NO_ARGUMENTS]
    offered = {name: getattr(options, name) for name in names}
    chosen = {
        name: value for name, value in offered.items() if name in known and value not in (None, [])
    }
    return {**chosen, **options.args}


def schedule_problems(options: SchedulerOptions, num_epochs: float, path: str) -> Iterator[str]:
    """Yield the problem of a schedule with its key path."""
    try:
        build_schedule(options, num_epochs)
    except ConfigError as error:
        yield f"{path}.{error}"
