"""Scale learning rates with the batch size, as a pure function: `auto_lr_scaling`.

    scaled = base_value * f(global batch / base_lr_batch_size),   f = identity or sqrt

The scaled value becomes the peak of the schedule, and the schedule's other values are scaled by
the same factor, except the start of a warm-up. As in VISSL, a warm-up starts at the learning rate
for one node's batch (Goyal et al., 2017), not at the value in the YAML. In sslengine a start of 0
stays 0, and with `warmup_start: as_written` any start stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.config.sections import fields_of, typed_nodes
from sslengine.errors import ConfigError

Schedule = dict[str, Any]
ONE_NODE, AS_WRITTEN = "one_node", "as_written"


def optimizers(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """Yield config.OPTIMIZER and components' sections of the same form, with their key paths."""
    for path, node in typed_nodes(config, path=""):
        if {"param_schedulers", "head_optimizer_params"} <= fields_of(node).keys():
            yield path.removeprefix("."), node


def schedules(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """Yield the schedules in use, with their key paths; heads have one only if they need it."""
    for path, optimizer in optimizers(config):
        own = optimizer.head_optimizer_params.use_different_lr
        for key, node in optimizer.param_schedulers.items():
            if node is not None and (own or key != "lr_head"):
                yield f"{path}.param_schedulers.{key}", node


def rates(config: DictConfig) -> Iterator[tuple[str, Schedule]]:
    """Yield the schedules in use that are of learning rates, with their key paths."""
    for path, node in schedules(config):
        if path.endswith((".lr", ".lr_head")):
            schedule: Any = OmegaConf.to_container(node)
            yield path, schedule


def scale_schedule(schedule: Schedule, global_batch: int, node_batch: int) -> Schedule:
    """Return the schedule for this batch size; `node_batch` is the batch of one node."""
    scaling = schedule["auto_lr_scaling"]
    scale = math.sqrt if scaling["scaling_type"] == "sqrt" else float
    base, base_batch = scaling["base_value"], scaling["base_lr_batch_size"]
    peak, start = (base * scale(batch / base_batch) for batch in (global_batch, node_batch))
    return _rescale(schedule, peak, start)


# The arguments of schedulers that are values of the schedule.
_VALUES = ("value", "start_value", "end_value", "base_value", "values")


def scale_to_peak(schedule: Schedule, peak: float) -> Schedule:
    """Multiply all values, also those of a composite's parts, by peak / largest value.

    (linear 0 to 0.2, cosine 0.2 to 0) with peak 0.1 becomes (linear 0 to 0.1, cosine 0.1 to 0).
    """
    largest = max(map(abs, _values(schedule)), default=0.0)
    if largest == 0.0:
        raise ConfigError(
            f"peak: the schedule {schedule['name']!r} has no value other than 0 to scale."
        )
    # Rounded, so that 0.2 * (0.3 / 0.2) is 0.3.
    return _map_values(schedule, lambda value: float(f"{value * (peak / largest):.12g}"))


def _values(schedule: Mapping[str, Any]) -> Iterator[float]:
    """Yield the values of a schedule and of its parts."""
    for key in _VALUES:
        value = schedule.get(key)
        values = value if isinstance(value, (list, tuple)) else [value]
        yield from (each for each in values if each is not None)
    for inside in (*(schedule.get("schedulers") or ()), schedule.get("args")):
        yield from _values(inside) if inside else ()


def _map_values(schedule: Mapping[str, Any], change: Callable[[float], float]) -> Schedule:
    """Change all values, also those of a composite's parts and of a custom scheduler's `args`."""

    def change_all(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [change_all(each) for each in value]
        return None if value is None else change(value)

    changed = {key: change_all(schedule[key]) for key in _VALUES if key in schedule}
    if schedule.get("schedulers"):
        changed["schedulers"] = [_map_values(part, change) for part in schedule["schedulers"]]
    if schedule.get("args"):
        changed["args"] = _map_values(schedule["args"], change)
    return {**schedule, **changed}


def _rescale(schedule: Schedule, peak: float, node_lr: float) -> Schedule:
    if schedule["name"] == "composite":
        return _rescale_composite(schedule, peak, node_lr)
    key = peak_key(schedule)
    if key is None:
        raise ConfigError(
            f"auto_lr_scaling does not know which argument of the scheduler {schedule['name']!r} "
            f"is its peak. Set auto_scale: false, and set the values."
        )
    if key == "values":
        first = schedule[key][0]
        return {**schedule, key: [round(peak * v / first, 8) for v in schedule[key]]}
    scaled = {**schedule, key: peak}
    if key == "start_value" and schedule.get("end_value") is not None:
        scaled["end_value"] = peak * (schedule["end_value"] / schedule[key])
    return scaled


def peak_key(schedule: Mapping[str, Any]) -> str | None:
    """Return the argument that is the largest value; None for a composite, or if unknown."""
    name = schedule["name"]
    if "cosine" in name:  # a cosine that rises from 0 has its peak at the end
        return "start_value" if schedule["start_value"] else "end_value"
    return _PEAK_KEYS.get(name)


_PEAK_KEYS = {
    "constant": "value",
    "multistep": "values",
    "step": "values",
    "linear": "end_value",
    "inverse_sqrt": "start_value",
    "step_with_fixed_gamma": "base_value",
    "polynomial": "base_value",
}


def _rescale_composite(schedule: Schedule, peak: float, node_lr: float) -> Schedule:
    """Scale each part; a `linear` part is the warm-up, and is removed if it no longer rises."""
    kept: list[tuple[Mapping[str, Any], float, str]] = []
    parts = schedule["schedulers"]
    scalings = schedule.get("interval_scaling") or ["rescaled"] * len(parts)
    for part, length, scaling in zip(parts, schedule["lengths"], scalings, strict=True):
        scaled = _rescale(dict(part), peak, node_lr)
        if part["name"] == "linear":
            how = schedule["auto_lr_scaling"].get("warmup_start", ONE_NODE)
            scaled["start_value"] = _warmup_start(part, peak, node_lr, how)
            if scaled["start_value"] >= peak:
                continue
        kept.append((scaled, length, scaling))
    if not kept:
        raise ConfigError(
            "auto_lr_scaling: after scaling no part of the composite schedule remains: all parts "
            "are linear and do not rise."
        )
    if len(kept) == 1:
        alone = dict(kept[0][0])
        return {**schedule, "schedulers": [], "lengths": [], "interval_scaling": [], **alone}
    total = sum(length for _, length, _ in kept)
    return {
        **schedule,
        "schedulers": [part for part, _, _ in kept],
        "lengths": [length / total for _, length, _ in kept],
        "interval_scaling": [scaling for _, _, scaling in kept],
    }


def _warmup_start(part: Mapping[str, Any], peak: float, node_lr: float, how: str) -> float:
    """Return one node's learning rate; on a single node, the YAML's ratio of start to peak."""
    written = float(part["start_value"])
    if written == 0 or how == AS_WRITTEN:
        return written
    if node_lr < peak:
        return node_lr
    end = float(part["end_value"])
    return peak * written / end if end else peak
