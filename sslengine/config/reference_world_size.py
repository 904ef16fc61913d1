"""`config.REFERENCE_WORLD_SIZE`: run a recipe for N ranks on M ranks.

The batch of a rank does not change, so the global batch is M/N times as large. To train on the same
number of images, the values are scaled:

    learning rates                          x M/N    the whole schedule, including the warm-up
    numbers of train steps                  x N/M    rounded, at least 1

The lengths of schedules (shares of training, epochs), epochs and LOG_FREQUENCY do not change.
Fields that count train steps are declared with `iterations(...)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from sslengine.config.facts import world_size
from sslengine.config.lr_scaling import optimizers
from sslengine.config.sections import fields_of, typed_nodes
from sslengine.errors import ConfigError, UnknownNameError
from sslengine.registry import SCHEDULERS

Schedule = dict[str, Any]
# Arguments of schedulers that are learning rates.
_RATES = ("value", "start_value", "end_value", "base_value", "values")


class Scaled(NamedTuple):
    path: str  # below `config`
    value: Any


def scale_to_ranks(config: DictConfig) -> Iterator[Scaled]:
    """Yield the values that change; none if the run has REFERENCE_WORLD_SIZE ranks."""
    reference, ranks = int(config.REFERENCE_WORLD_SIZE), world_size(config)
    if not reference:
        return
    paths = []
    for path, optimizer in optimizers(config):
        paths.append(f"{path}.param_schedulers.lr")
        if optimizer.head_optimizer_params.use_different_lr:
            paths.append(f"{path}.param_schedulers.lr_head")  # otherwise the same as lr
    for path in paths:
        _refuse_two_scalings(config, path)
    if ranks == reference:
        return
    for path in paths:
        schedule: Any = OmegaConf.to_container(OmegaConf.select(config, path))
        for name, value in scale_rates(schedule, ranks / reference, f"config.{path}").items():
            if value != schedule[name]:
                yield Scaled(f"{path}.{name}", value)
    yield from _steps(config, reference, ranks)
    yield Scaled("REFERENCE_WORLD_SIZE", ranks)  # the scaled values are for this number of ranks


def _refuse_two_scalings(config: DictConfig, path: str) -> None:
    if OmegaConf.select(config, path).auto_lr_scaling.auto_scale:
        raise ConfigError(
            f"config.REFERENCE_WORLD_SIZE and config.{path}."
            f"auto_lr_scaling.auto_scale both scale the learning rate by the number of ranks: set "
            f"REFERENCE_WORLD_SIZE to 0 or auto_scale to false."
        )


def scale_rates(schedule: Schedule, factor: float, where: str) -> Schedule:
    """Multiply every learning rate of the schedule by the factor."""
    name = str(schedule.get("name", ""))
    if name == "composite":
        parts = [
            scale_rates(part, factor, f"{where}.schedulers.{index}")
            for index, part in enumerate(schedule["schedulers"])
        ]
        return {**schedule, "schedulers": parts}
    try:
        known = SCHEDULERS.parameters(name)
    except UnknownNameError:
        return schedule  # reported by check.py
    rates = {key: schedule[key] for key in _RATES if key in known and schedule.get(key)}
    if not rates and not {*_RATES} & {*known}:
        raise ConfigError(
            f"{where}: config.REFERENCE_WORLD_SIZE cannot scale the scheduler {name!r}: none of "
            f"its arguments is known to be a learning rate ({', '.join(_RATES)}). Set "
            f"REFERENCE_WORLD_SIZE to 0, and set the values for this number of ranks."
        )
    scaled = {**schedule, **{key: _times(value, factor) for key, value in rates.items()}}
    if schedule.get("args"):  # of a custom scheduler
        own = schedule["args"].items()
        scaled["args"] = {k: _times(v, factor) if k in _RATES else v for k, v in own}
    return scaled


def _times(value: Any, factor: float) -> Any:
    return [each * factor for each in value] if isinstance(value, list) else value * factor


def _steps(config: DictConfig, reference: int, ranks: int) -> Iterator[Scaled]:
    for path, node in typed_nodes(config, ""):
        for key, field in fields_of(node).items():
            if not field.metadata.get("iterations"):
                continue
            value = node[key]
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value)
            scaled = scale_steps(value, reference, ranks)
            if scaled != value:
                yield Scaled(f"{path}.{key}".lstrip("."), scaled)


def scale_steps(value: Any, reference: int, ranks: int) -> Any:
    """Scale a number of steps, or entries `[name, number of steps]`; 0, -1 and null stay."""
    if isinstance(value, list):
        return [[*head, scale_steps(last, reference, ranks)] for *head, last in value]
    if not isinstance(value, int) or value <= 0:
        return value
    return max(1, round(value * reference / ranks))
