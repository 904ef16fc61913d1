"""The small run in which components are tested: a tiny network, generated images, a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.compose import Assignment, compose
from sslengine.config.resolve import Resolved, freeze

# The default config file: configs/testing/small.yaml.
FILE = "config=testing/small"
# Overrides that make any run small. Three steps per epoch: the fourth is in the next epoch.
SMALL: dict[str, Any] = {
    "LOG_FREQUENCY": 1,
    "DATA.NUM_DATALOADER_WORKERS": 0,
    "DATA.TRAIN.DATA_LIMIT": 12,
    "DATA.TRAIN.BATCHSIZE_PER_REPLICA": 4,
    "OPTIMIZER.num_iterations": 4,
    "DISTRIBUTED.NUM_PROC_PER_NODE": 1,
    "MACHINE.DEVICE": "cpu",
    "HOOKS.COLLAPSE_SIGNS": False,
}

Values = Mapping[str, Any]


def resolve_small(overrides: Sequence[str], *values: Values) -> Resolved:
    """Resolve a run as the command line does, with values that make it small.

    overrides: arguments of the command; `config=FILE` chooses another file.
    values: by key path below `config`. Overrides take precedence.
    """
    chosen = any(each.startswith("config=") for each in overrides)
    asked = compose(overrides if chosen else [FILE, *overrides])
    ours = [
        Assignment(f"config.{path}", value, f"config.{path}={value}", may_be_new=True)
        for each in (SMALL, *values)
        for path, value in each.items()
    ]
    return freeze(replace(asked, assignments=[*ours, *asked.assignments]))
