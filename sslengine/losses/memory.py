"""A memory bank: one row for each sample of the training set, of what the model last said of it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.errors import ConfigError


def expect_sample_index(facts: RunFacts, loss: str) -> None:
    """While the config is checked: does every sample that comes have a row?"""
    if facts.label_type not in ("", "sample_index"):
        raise ConfigError(
            f"{loss} keeps a row for each sample, and config.DATA.TRAIN.LABEL_TYPE is "
            f"{facts.label_type}: set it to sample_index."
        )
    if facts.test_phases:
        raise ConfigError(
            f"{loss} keeps a row for each training sample; those of test phases have none: set "
            f"config.TEST_MODEL to false."
        )


def random_rows(num_rows: int, dim: int, unit_length: bool) -> Tensor:
    """Where a memory starts: uniform, each row of length 1 in the mean or exactly."""
    rows = (torch.rand(num_rows, dim) * 2 - 1) * (3 / dim) ** 0.5
    return F.normalize(rows, dim=1) if unit_length else rows


@torch.no_grad()
def overwrite(memory: Tensor, rows: Tensor, values: Tensor, counted: Tensor) -> None:
    """memory[rows[i]] = values[i] wherever counted[i]; of several for one row the last one stays.

    rows (R,), values (R, ...), counted (R,) of bool. A row that does not count may hold any
    valid number. What is written does not depend on the order in which a device writes.
    """
    same = (rows.unsqueeze(1) == rows) & counted
    places = torch.arange(len(rows), device=rows.device)
    last = torch.where(same, places, -1).amax(dim=1)
    # Those that do not count write what is to stand there in any case.
    found = (last >= 0).view(-1, *[1] * (values.ndim - 1))
    memory.index_copy_(0, rows, torch.where(found, values[last], memory[rows]))


@torch.no_grad()
def move_towards(
    memory: Tensor, rows: Tensor, values: Tensor, counted: Tensor, momentum: float
) -> None:
    """The same with `momentum` of the old row, and unit length: m * old + (1 - m) * new."""
    moved = memory[rows] * momentum + values * (1.0 - momentum)
    overwrite(memory, rows, F.normalize(moved, dim=1), counted)
