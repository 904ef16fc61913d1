"""Merge schedules that several places set, before they are checked.

A place (a file, the command line) that gives a schedule another name replaces it: arguments of
the earlier schedule that the new one does not take are dropped. Arguments that the new one does
not take, and that are set with or after its name, are dropped with a warning if a file has them,
as VISSL's files do; typed, they are mistakes.

VISSL's default learning rate (0.1 and the values derived from it) applies to SGD only. A config
with another optimizer must set a complete schedule, and so must a place that replaces a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sslengine.config.components import belongs_to, owners_of
from sslengine.config.compose import Composition
from sslengine.config.lr_scaling import optimizers, peak_key
from sslengine.config.merge import Merged
from sslengine.config.places import BY_DEFAULT, Places
from sslengine.config.sections import fields_of
from sslengine.errors import ConfigError, UnknownNameError, listing
from sslengine.registry import SCHEDULERS

# Keys of a schedule that are not arguments of its curve.
_NO_ARGUMENTS = ("name", "update_interval", "args", "auto_lr_scaling", "peak")
_VISSLS_OPTIMIZERS = ("sgd", "sgd_fsdp")
_VISSLS_LR: dict[str, Any] = {
    "values": [0.1, 0.01, 0.001],
    "milestones": [30, 60],
    "start_value": 0.1,
    "end_value": 0.0,
    "value": 0.1,
}
# Two parts join if their values differ by less than this share of the schedule's largest value.
_GAP = 0.01


def settle_schedules(merged: Merged, composition: Composition) -> None:
    """Drop arguments of replaced schedules, and report arguments that contradict each other."""
    places = Places(merged, composition)
    for path, optimizer in optimizers(merged.root.config):
        for key in optimizer.param_schedulers:
            # An interpolation may refer to options of a component, which are merged later.
            with suppress(OmegaConfBaseException):
                if _is_used(optimizer, str(key)):
                    where = f"config.{path}.param_schedulers.{key}"
                    node = optimizer.param_schedulers[key]
                    problems = _settle(where, node, optimizer.name, places, merged.warnings)
                    merged.problems.extend(problems)


def _is_used(optimizer: DictConfig, key: str) -> bool:
    separate_heads = bool(optimizer.head_optimizer_params.use_different_lr)
    return optimizer.param_schedulers[key] is not None and (key != "lr_head" or separate_heads)


@dataclass(frozen=True)
class _Name:
    """The schedule's name, the place that set it, and the name that it replaced."""

    name: str
    since: int = BY_DEFAULT
    before: str = ""


def _name_of(path: str, name: str, places: Places) -> _Name:
    current = _Name(name)
    for number, given in places.names(f"{path}.name"):
        before = current.name if current.since != BY_DEFAULT else ""
        if given != before:
            current = _Name(given, number, before)
    return current


def _settle(
    path: str, node: DictConfig, optimizer: str, places: Places, warnings: list[str]
) -> Iterator[str]:
    called = _name_of(path, node.name, places)
    own_default = optimizer in _VISSLS_OPTIMIZERS and not called.before
    if called.since == BY_DEFAULT and not own_default:
        yield (
            f"{path}: {optimizer} requires a schedule; VISSL's default, {node.name} from 0.1, is "
            f"for sgd only. {_example(path)}"
        )
        return
    try:
        parameters = SCHEDULERS.parameters(called.name)
    except UnknownNameError:
        return  # reported by check.py
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    missing = []
    for key in fields_of(node):
        if key in _NO_ARGUMENTS or _is_empty(node[key]):
            continue
        place = places.of(f"{path}.{key}")
        if key in parameters or takes_any:
            if place == BY_DEFAULT and not own_default:
                missing.append(key)
        elif place == places.command_line:
            yield f"{path}.{key}: {_unknown(key, path, called.name, parameters, places)}"
        else:
            if place >= max(called.since, 0) and not _is_vissls(f"{path}.{key}", node[key], places):
                text = _unknown(key, path, called.name, parameters, places)
                warnings.append(f"{path}.{key} has no effect: {text}")
            node[key] = None
            places.forget(f"{path}.{key}")
    if missing:
        why = f"it replaces {called.before}" if called.before else (
            f"VISSL's defaults are for sgd, not for {optimizer}"
        )  # fmt: skip
        keys = " and ".join(f"{path}.{key}" for key in missing)
        yield f"{keys}: {called.name} requires a value; {why}. {_example(path)}"
        return
    yield from _peak_problems(path, node, called, places)
    if called.name == "composite":
        yield from _gap_problems(path, node, places)


def _is_vissls(where: str, value: Any, places: Places) -> bool:
    """Is it VISSL's default, from the file of an earlier run, which held every key there is?"""
    return "is_adaptive" in places.layer(where) and value == _VISSLS_LR.get(where.split(".")[-1])


def _is_empty(value: Any) -> bool:
    return value is None or (OmegaConf.is_config(value) and not value)


def _unknown(key: str, path: str, name: str, parameters: Mapping[str, Any], places: Places) -> str:
    takes = [each for each in parameters if each != "num_epochs"]
    return (
        f"it {belongs_to(SCHEDULERS, key, owners_of(SCHEDULERS, key))}; here {name} is chosen, "
        f"which takes {listing(takes)}. {path}.peak sets the largest value of the whole schedule. "
        f"Set by {places.origins.get(f'{path}.{key}')}."
    )


def _example(path: str) -> str:
    return (
        f"For example: '{path}={{name: cosine, start_value: 0.001, end_value: 0.0, "
        f"update_interval: step}}'"
    )


# ---- the largest value is set twice


def _peak_problems(path: str, node: DictConfig, called: _Name, places: Places) -> Iterator[str]:
    """Report keys without effect because another key sets the largest value."""
    scaling = f"{path}.auto_lr_scaling"
    scaled = bool(node.auto_lr_scaling.auto_scale)
    if scaled and node.peak is not None and places.of(f"{path}.peak") <= places.of(scaling):
        yield (
            f"{path}.peak: auto_lr_scaling sets the largest value from the batch size; set "
            f"{scaling}.base_value, or {scaling}.auto_scale=false as well."
        )
    if scaled and path.rpartition(".")[2] not in ("lr", "lr_head"):
        yield f"{scaling}.auto_scale: has no effect, because it scales learning rates only."
    if node.peak is None and not scaled:
        return
    setter = scaling if node.peak is None else f"{path}.peak"
    typed, key = places.command_line, peak_key(node)
    alone = places.of(f"{path}.{key}") == typed > max(places.of(setter), called.since)
    if key not in (None, "values") and alone:  # `values` also set the ratios between values
        yield (
            f"{path}.{key}: has no effect, because {setter} sets the largest value of this "
            f"schedule. Set {path}.peak."
        )


# ---- one part of a composite is changed


def _gap_problems(path: str, node: DictConfig, places: Places) -> Iterator[str]:
    """Report a changed value of one part that makes the schedule jump between two parts."""
    changed = [key for key in places.origins if _is_value_of_part(key, path)]
    if not changed:
        return
    if node.auto_lr_scaling.auto_scale and node.peak is None:
        yield (
            f"{changed[0]}: auto_lr_scaling sets the largest value of this schedule; set "
            f"{path}.peak, or {path}.auto_lr_scaling.base_value for its batch size."
        )
        return
    before = places.composition.last_value(f"{path}.schedulers")
    with suppress(ConfigError, TypeError, ValueError, KeyError):
        settings: Any = OmegaConf.to_container(node)
        now, was = _gaps(settings), _gaps({**settings, "schedulers": before})
        largest = max(map(abs, _values(settings["schedulers"])))
        for index, (gap, old) in enumerate(zip(now, was, strict=True)):
            if abs(gap[1] - gap[0]) > abs(old[1] - old[0]) + _GAP * largest:
                yield (
                    f"{', '.join(changed)}: the schedule would jump from {gap[0]:.4g} to "
                    f"{gap[1]:.4g} between schedulers.{index} and schedulers.{index + 1}. To scale "
                    f"the whole schedule set {path}.peak instead; if the jump is intended, set all "
                    f"of {path}.schedulers in one place."
                )
                return


def _is_value_of_part(key: str, path: str) -> bool:
    index, _, name = key.removeprefix(f"{path}.schedulers.").partition(".")
    return key.startswith(f"{path}.schedulers.") and index.isdigit() and name.endswith("value")


def _gaps(settings: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the values just before and after each border between two parts."""
    arguments = {key: settings[key] for key in ("schedulers", "lengths", "interval_scaling")}
    curve = SCHEDULERS.get("composite")(**arguments, num_epochs=1e9)
    near, borders = 3e-6, [sum(settings["lengths"][:n]) for n in range(1, len(settings["lengths"]))]
    return [(curve(border - near), curve(border + near)) for border in borders]


def _values(parts: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    for part in parts:
        yield from (float(each) for key, each in part.items() if key.endswith("value"))
