"""Keys of OPTIMIZER that the chosen optimizer does not take.

VISSL's files set momentum, nesterov and betas for any optimizer: a warning says which of them has
no effect. (Not of a default, which the file of an earlier run holds too.) Other such keys are an
error: OptimizerSettings.check_chosen.
"""

from __future__ import annotations

import inspect

from sslengine.config.lr_scaling import optimizers
from sslengine.config.merge import Merged
from sslengine.config.places import Places
from sslengine.errors import ConfigError
from sslengine.registry import OPTIMIZERS

SHARED = {"momentum": 0.9, "nesterov": False, "betas": [0.9, 0.999]}


def warn_of_keys_without_effect(merged: Merged, places: Places) -> None:
    for path, node in optimizers(merged.root.config):
        changed = [key for key, default in SHARED.items() if node[key] != default]
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
