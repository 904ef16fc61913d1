"""Multipliers on learning rate and weight decay: of a method's parameters, and of any others.

Parameters are named by patterns: those of the model, trunk.* and heads.0.*, and loss.*.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from sslengine.errors import ConfigError, listing, nearest
from sslengine.optim.options import MultiplierOptions


class Multiplier(NamedTuple):
    lr: float = 1.0
    weight_decay: float = 1.0


NONE = Multiplier()
WHERE = "config.OPTIMIZER.multipliers"


def chosen_multipliers(
    model: nn.Module, entries: Sequence[MultiplierOptions]
) -> dict[nn.Parameter, Multiplier]:
    """Return the product of all entries that match its name, by parameter."""
    found: dict[nn.Parameter, Multiplier] = {}
    for number, each in enumerate(entries):
        for parameter in matching(model, each.match, f"{WHERE}.{number}.match"):
            lr, weight_decay = found.get(parameter, NONE)
            found[parameter] = Multiplier(lr * each.lr, weight_decay * each.weight_decay)
    return found


def multipliers_of(method: nn.Module) -> dict[nn.Parameter, Multiplier]:
    """Return `method.multipliers()` by parameter; {} if there is no such method."""
    patterns: Mapping[str, Multiplier] = getattr(method, "multipliers", dict)()
    named = dict(method.named_parameters())
    found: dict[nn.Parameter, Multiplier] = {}
    for pattern, multiplier in patterns.items():
        matched = [name for name in named if fnmatchcase(name, pattern)]
        if not matched:
            raise ConfigError(
                f"{type(method).__name__}.multipliers: {pattern!r} matches none of its parameters. "
                f"{nearest(pattern, named)}".rstrip()
            )
        found.update((named[name], Multiplier(*multiplier)) for name in matched)
    return found


def multiplied(
    groups: Iterable[dict[str, Any]], multipliers: Mapping[nn.Parameter, Multiplier]
) -> list[dict[str, Any]]:
    """Split each group into groups with one multiplier each."""
    parts = []
    for group in groups:
        split: dict[Multiplier, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            split.setdefault(multipliers.get(parameter, NONE), []).append(parameter)
        for multiplier, parameters in split.items():
            part = {**group, "params": parameters}
            if multiplier != NONE:
                part["name"] = f"{group.get('name', 'unnamed')} {tuple(multiplier)}"
                part["lr_scale"] = group.get("lr_scale", 1.0) * multiplier.lr
                part["weight_decay_scale"] = (
                    group.get("weight_decay_scale", 1.0) * multiplier.weight_decay
                )
                if "weight_decay" in group:
                    part["weight_decay"] = group["weight_decay"] * multiplier.weight_decay
            parts.append(part)
    return parts


def matching(model: nn.Module, pattern: str, where: str) -> list[nn.Parameter]:
    """Return the trainable parameters that the pattern matches; ConfigError if there are none."""
    named = dict(model.named_parameters())
    found = [each for name, each in named.items() if fnmatchcase(name, pattern)]
    trained = [each for each in found if each.requires_grad]
    if trained:
        return trained
    if found:
        raise ConfigError(f"{where}: all parameters that {pattern!r} matches are frozen.")
    names = [name for name, each in named.items() if each.requires_grad]
    raise ConfigError(
        f"{where}: {pattern!r} matches no parameter. {nearest(pattern, _patterns(names))}\n"
        f"  Known: {listing(names)}"
    )


def _patterns(names: Collection[str]) -> list[str]:
    """Return the names, and those of all modules around them, as `module.*`."""
    found = set(names)
    for name in names:
        parts = name.split(".")
        found |= {".".join([*parts[:depth], "*"]) for depth in range(1, len(parts))}
    return sorted(found)
