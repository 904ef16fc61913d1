"""A schedule: a curve, and whether its value is set in every step or in every epoch."""

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

# Where a schedule is tried before a run.
_PLACES = tuple(number / 64 for number in range(64))


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


@beside(SCHEDULERS, "name")
@dataclass
class SchedulerOptions:
    """A scheduler; its arguments are keys next to its name."""

    # constant, linear, cosine, multistep, composite, ...
    name: str = named(SCHEDULERS, "")
    # step, epoch, or null: the scheduler's default.
    update_interval: str | None = None
    # The largest value of the whole schedule, also of a composite: all values are scaled so that
    # the largest is this. It overrides the auto_lr_scaling of an earlier file. null: no scaling.
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
    """Build the schedule; a mistake raises a ConfigError whose text starts with the key."""
    curve = build_curve(options.name, _arguments(options), num_epochs)
    if SCHEDULERS.is_users(options.name):
        _expect_function_of_where(curve, options.name)
    own_interval = "epoch" if options.name in PER_EPOCH else "step"
    return Schedule(curve, options.update_interval or own_interval)


def _expect_function_of_where(curve: Curve, name: str) -> None:
    """Raise ConfigError if it is no number of 0 or more somewhere, or depends on what was asked."""
    for where in _PLACES:
        try:
            value, again = curve(where), curve(where)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(f"name: {name} fails at where = {where:g}: {why}.") from error
        if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ConfigError(
                f"name: {name} gives {value!r} at where = {where:g}, the share of training that is "
                f"done; expected a finite number, 0 or more."
            )
        if again != value:
            raise ConfigError(
                f"name: {name} gives {value!r} at where = {where:g}, and then {again!r}; expected "
                f"a function of `where` alone, or a resumed run would have other values."
            )


def _arguments(options: SchedulerOptions) -> dict[str, Any]:
    """Return the arguments that are set and that the scheduler has, and `args`."""
    known = SCHEDULERS.parameters(options.name, "name")
    names = [each.name for each in fields(options) if each.name not in NO_ARGUMENTS]
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
