"""Warn of what is set and has no effect, or not the one that was meant.

Arguments that the optimizer does not take: VISSL's files set momentum, nesterov and betas for any
optimizer. (Not of a default, which the file of an earlier run holds too.) Other such keys are an
error: OptimizerSettings.check_chosen.

Sections of components that are not chosen: `LOSS.dino_loss` where `LOSS.name` is another loss.
What a later place sets, or the command line, was meant to have an effect. A file may hold sections
of several losses, and a file based on it may choose another.

What has more epochs than the run: warm-ups, whose fields are declared with `epochs(...)`, and
frozen parameters.
"""

from __future__ import annotations

import inspect

from sslengine.config.lr_scaling import optimizers
from sslengine.config.merge import Merged
from sslengine.config.places import Places
from sslengine.config.sections import choosing_keys, fields_of, typed_nodes
from sslengine.errors import ConfigError
from sslengine.registry import OPTIMIZERS, component_key

_SHARED = {"momentum": 0.9, "nesterov": False, "betas": [0.9, 0.999]}


def warn_of_keys_without_effect(merged: Merged, places: Places) -> None:
    for path, node in optimizers(merged.root.config):
        changed = [key for key, default in _SHARED.items() if node[key] != default]
        for key in _not_taken(node.name, changed):
            where = f"config.{path}.{key}"
            origin = places.origins.get(where, "the default")
            text = f"{where} has no effect: {node.name} has no {key} ({origin})"
            merged.warnings.append(text)


def _not_taken(name: str, keys: list[str]) -> list[str]:
    if not keys:
        return []  # nothing has to be imported
    try:
        known = inspect.signature(OPTIMIZERS.get(name)).parameters
    except (ConfigError, TypeError, ValueError):
        return []  # reported by check.py
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return []
    return [key for key in keys if key not in known]


def warn_of_unused_sections(merged: Merged, places: Places) -> None:
    for path, node in typed_nodes(merged.root.config):
        keys = choosing_keys(node)
        if not keys:
            continue
        chosen = [name for key in keys for name in _names(node[key])]
        since = max(places.of(f"{path}.{key}") for key in keys)
        used = {*fields_of(node), *map(component_key, chosen)}
        for where in (f"{path}.{name}" for name in map(str, node) if name not in used):
            if places.of(where) > since or places.of(where) == places.command_line:
                text = f"{path}.{keys[-1]} is {' and '.join(chosen) or 'empty'}"
                merged.warnings.append(f"{where} has no effect: {text}")


def _names(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) and value else [*value]


def warn_of_late_epochs(merged: Merged) -> None:
    config, run = merged.root.config, merged.root.config.OPTIMIZER.num_epochs
    for path, node in typed_nodes(config) if run else ():
        for key, field in fields_of(node).items():
            if field.metadata.get("epochs") and node[key] > run:
                merged.warnings.append(
                    f"{path}.{key} is {node[key]}, but the run has {run} epochs "
                    f"(config.OPTIMIZER.num_epochs): it ends before the warm-up does"
                )
    for entry in config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP if run else ():
        match entry:
            case [str(name), int(epochs)] if epochs >= run:
                merged.warnings.append(
                    f"config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP: {name} is frozen for {epochs} "
                    f"epochs, and the run has {run} (config.OPTIMIZER.num_epochs): it is never "
                    f"trained"
                )
