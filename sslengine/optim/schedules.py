"""Schedules: a curve, and whether its value is set in every step or in every epoch.

A curve is a value as a function of `where`, the completed share of training, in [0, 1). Each
registered function takes the arguments of the YAML and returns the curve. A custom scheduler works
in the same way:

    @register_scheduler("sawtooth")
    def sawtooth(start_value: float, teeth: int) -> Curve:
        return lambda where: start_value * (1 - where * teeth % 1)

The engine passes the argument `num_epochs`. With `options=Cls` the function takes one object of
that dataclass instead. In YAML arguments are keys next to the scheduler's name; those of a curve
that is named by a dotted path are set under `args`. A wrong argument raises a ConfigError that
starts with the argument's name.
"""

from __future__ import annotations

import bisect
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from fvcore.common import param_scheduler as fvcore

from sslengine.config.components import argument_problems
from sslengine.config.ranges import above, at_least, choice
from sslengine.config.sections import hosts, join, named, section_problems
from sslengine.errors import ConfigError
from sslengine.registry import SCHEDULERS, register_scheduler

Curve = Callable[[float], float]

# Curves that change between epochs only; by default their values are set once per epoch.
PER_EPOCH = ("constant", "multistep", "step")
_EPSILON = fvcore.ParamScheduler.WHERE_EPSILON

# Fields of SchedulerOptions that are not a scheduler's.
NO_ARGUMENTS = ("name", "update_interval", "args", "auto_lr_scaling", "peak")


@dataclass
class AutoLrScaling:
    # Scale the learning rate with the batch size.
    auto_scale: bool = False
    # The learning rate at base_lr_batch_size.
    base_value: float = 0.1
    # The batch size to which base_value belongs.
    base_lr_batch_size: int = at_least(1, 256)
    # linear in the ratio of the batch sizes, or sqrt of it.
    scaling_type: str = choice("linear", "sqrt")
    # The start of a linear warm-up. one_node: the learning rate of one node's batch; as_written:
    # its start_value. A start_value of 0 is never changed.
    warmup_start: str = choice("one_node", "as_written")


@hosts(SCHEDULERS, "name")
@dataclass
class SchedulerOptions:
    """A scheduler; its arguments are keys next to its name."""

    # constant, linear, cosine, multistep, composite, ...
    name: str = named(SCHEDULERS, "")
    # step, epoch, or null: the scheduler's default.
    update_interval: str | None = choice(None, "step", "epoch")
    # The largest value of the whole schedule, also of a composite: all values are scaled so that
    # the largest is this. It overrides the auto_lr_scaling of an earlier file. null: no scaling.
    peak: float | None = above(0, None)
    # Arguments of a scheduler that is named by a dotted path.
    args: dict[str, Any] = field(default_factory=dict)
    auto_lr_scaling: AutoLrScaling = field(default_factory=AutoLrScaling)


@dataclass(frozen=True)
class Schedule:
    """`value(where)` for `where` in [0, 1); set again every "step" or every "epoch"."""

    value: Curve
    interval: str


def schedule(name: str, **keys: Any) -> SchedulerOptions:
    """Make the options of one in Python."""
    return join(SchedulerOptions, [name])(name=name, **keys)


def build_schedule(options: SchedulerOptions, num_epochs: float) -> Schedule:
    """Build the schedule; a mistake raises a ConfigError whose text starts with the key."""
    curve = build_curve(options.name, _arguments(options), num_epochs)
    own_interval = "epoch" if options.name in PER_EPOCH else "step"
    return Schedule(curve, options.update_interval or own_interval)


def _arguments(options: SchedulerOptions) -> dict[str, Any]:
    """Return the arguments that are set and that the scheduler has, and `args`."""
    known = {*SCHEDULERS.parameters(options.name, "name")} - {*NO_ARGUMENTS}
    names = (each.name for each in fields(options) if each.name in known)
    offered = ((name, getattr(options, name)) for name in names)
    return {**{name: each for name, each in offered if each not in (None, [])}, **options.args}


# ---- curves


def build_curve(name: str, arguments: Mapping[str, Any], num_epochs: float) -> Curve:
    """Build the curve `name`; errors start with the key path below that of the schedule."""
    builder, options = SCHEDULERS.get(name, "name"), SCHEDULERS.options(name)
    for problem in argument_problems(
        options or builder, arguments, "", SCHEDULERS.engine_arguments
    ):
        raise ConfigError(problem.removeprefix("."))
    if options is not None:
        for text in section_problems(options(**arguments)):
            raise ConfigError(text)
    elif "num_epochs" in inspect.signature(builder).parameters:
        arguments = {**arguments, "num_epochs": num_epochs}
    try:
        return cast(Curve, SCHEDULERS.make(name, arguments, "name"))
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ConfigError(f"name: {name} rejects its arguments: {error}") from error


@register_scheduler("constant")
def constant(value: float) -> Curve:
    """value: throughout."""
    return cast(Curve, fvcore.ConstantParamScheduler(value))


@register_scheduler("linear")
def linear(start_value: float, end_value: float) -> Curve:
    """start_value: the first value.
    end_value: the last value.
    """
    return cast(Curve, fvcore.LinearParamScheduler(start_value, end_value))


@register_scheduler("cosine")
def cosine(start_value: float, end_value: float) -> Curve:
    """Half a cosine wave from start_value to end_value.

    start_value: the first value.
    end_value: the last value.
    """
    return cast(Curve, fvcore.CosineParamScheduler(start_value, end_value))


@register_scheduler("polynomial")
def polynomial(base_value: float, power: float) -> Curve:
    """base_value * (1 - where) ** power

    base_value: the first value.
    power: the exponent.
    """
    return cast(Curve, fvcore.PolynomialDecayParamScheduler(base_value, power))


@register_scheduler("multistep")
def multistep(values: list[float], num_epochs: float, milestones: list[int] | None = None) -> Curve:
    """The next value starts at each milestone (an epoch); without milestones, in equal shares.

    values: the values in order.
    milestones: the epochs at which the next value starts. Milestones after the end of the run have
    no effect.
    """
    if milestones is not None:
        if len(milestones) != len(values) - 1:
            raise ConfigError(f"milestones: expected {len(values) - 1}, got {milestones}.")
        if any(after <= before for before, after in zip([0, *milestones], milestones)):
            raise ConfigError(f"milestones: expected increasing epochs above 0, got {milestones}.")
        # fvcore's needs as many whole epochs as values; a run may end within an epoch.
        return _stop_before_end(
            lambda where: values[bisect.bisect(milestones, (where + _EPSILON) * num_epochs)]
        )
    if not values or num_epochs < len(values):
        raise ConfigError(
            f"values: expected at least one value, and at most one for each epoch; "
            f"got {len(values)} for {num_epochs:g} epochs (OPTIMIZER.num_epochs)."
        )
    length = cast(int, num_epochs)  # fvcore declares an int, and accepts a fraction
    return cast(Curve, fvcore.MultiStepParamScheduler(list(values), length))


@register_scheduler("step")
def step(values: list[float], num_epochs: float) -> Curve:
    """Each value for an equal share of training.

    values: one after the other.
    """
    return _stop_before_end(fvcore.StepParamScheduler(num_epochs, list(values)))


@register_scheduler("step_with_fixed_gamma")
def step_with_fixed_gamma(base_value: float, num_decays: int, gamma: float) -> Curve:
    """base_value, multiplied by gamma `num_decays` times, in equal shares of training.

    base_value: the first value.
    num_decays: how many times the value is multiplied by gamma.
    gamma: the factor.
    """
    # fvcore requires a length and does not use it.
    return _stop_before_end(
        fvcore.StepWithFixedGammaParamScheduler(base_value, num_decays, gamma, num_updates=1)
    )


def _stop_before_end(curve: Curve) -> Curve:
    """Limit `where`: fvcore rounds it up, which exceeds the last value at the end of long runs."""
    return lambda where: curve(min(where, 1.0 - 2.0 * _EPSILON))


@register_scheduler("inverse_sqrt")
def inverse_sqrt(start_value: float, warmup_interval_length: float) -> Curve:
    """start_value * sqrt(w / where), with w = warmup_interval_length: start_value at where = w.

    As in VISSL, the value at where = 0 is sqrt(w) * start_value, and w = 0 counts as 1. Use it
    as the second part of a composite, with interval scaling `fixed`.

    start_value: the value after warm-up.
    warmup_interval_length: the warm-up's share of training.
    """
    peak = start_value * math.sqrt(warmup_interval_length or 1.0)
    return lambda where: peak / math.sqrt(where) if where > 0 else peak


@register_scheduler("cosine_warm_restart")
def cosine_warm_restart(
    start_value: float,
    end_value: float,
    restart_interval_length: float,
    wave_type: str = "half",
    lr_multiplier: float = 1.0,
    is_adaptive: bool = False,
) -> Curve:
    """Consecutive cosine waves, with r = restart_interval_length:

        end + (peak_n - end) / 2 * (1 + cos(pi * phase))

    With half waves phase runs from 0 to 1 in each interval r, then restarts: n = floor(where / r).
    With full waves phase = where / r, which falls and rises without a jump; n increases at the
    minima r, 3r, 5r ...: n = floor((where / r + 1) / 2).

    peak_n = start * lr_multiplier ** n. If adaptive, peak_n is the value of a single cosine from
    start to end at the peak (at nr for half; for full at 2nr, and at r for n = 0 as in VISSL,
    so such a wave starts below start).

    start_value: the first value.
    end_value: the last value.
    restart_interval_length: share of training between restarts; above 1, training ends within the
        first wave.
    wave_type: half or full waves.
    lr_multiplier: the largest value of a wave, divided by that of the wave before.
    is_adaptive: each wave starts at the value of a single cosine over the run.
    """
    if restart_interval_length <= 0:
        raise ConfigError(f"restart_interval_length: {restart_interval_length} is not above 0.")
    if wave_type not in ("half", "full"):
        raise ConfigError(f"wave_type: expected half or full, got {wave_type!r}.")
    full = wave_type == "full"
    step = restart_interval_length * (2 if full else 1)
    restarts = [0.0]
    while (next_one := restart_interval_length + (len(restarts) - 1) * step) < 1.0:
        restarts.append(next_one)
    shift = restart_interval_length if full else 0.0
    if is_adaptive:
        single = fvcore.CosineParamScheduler(start_value, end_value)
        peaks = [single(place + shift) for place in restarts]
    else:
        peaks = [start_value * lr_multiplier**n for n in range(len(restarts))]

    def curve(where: float) -> float:
        where = max(where, 0.0)  # a composite starts its parts a millionth early
        peak = peaks[bisect.bisect_right(restarts, where) - 1]
        phase = where / restart_interval_length
        if not full:
            phase = where % restart_interval_length / restart_interval_length
        return end_value + 0.5 * (peak - end_value) * (1 + math.cos(math.pi * phase))

    return curve


@register_scheduler("composite")
def composite(
    schedulers: list[dict[str, Any]],
    lengths: list[float],
    num_epochs: float,
    interval_scaling: list[str] | None = None,
) -> Curve:
    """Consecutive curves, each for a share of training.

    schedulers: the parts, each with its name and arguments.
    lengths: their shares of training, which sum to 1.
    interval_scaling: for each part, rescaled (its `where` goes from 0 to 1 within its share) or
        fixed (its `where` is that of training).
    """
    scaling = interval_scaling or ["rescaled"] * len(schedulers)
    if any(length <= 0 for length in lengths):
        raise ConfigError(f"lengths: expected shares above 0, got {lengths}.")
    if len(scaling) != len(schedulers):
        raise ConfigError(f"interval_scaling: expected {len(schedulers)}, one for each scheduler.")
    parts: Any = [_part(index, part, num_epochs) for index, part in enumerate(schedulers)]
    return cast(Curve, fvcore.CompositeParamScheduler(parts, list(lengths), scaling))


def _part(index: int, part: Mapping[str, Any], num_epochs: float) -> Curve:
    arguments = {key: value for key, value in part.items() if key != "name"}
    try:
        return build_curve(str(part.get("name", "")), arguments, num_epochs)
    except ConfigError as error:
        raise ConfigError(f"schedulers.{index}.{error}") from error
