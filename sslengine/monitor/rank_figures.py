"""Metrics of all ranks as one: the mean, the largest or the sum of what each has put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from sslengine.errors import TrainingError, listing

REDUCTIONS = (None, "mean", "max", "sum")


class OfRank(NamedTuple):
    """What one rank put under one name since metrics were last read."""

    reduce: str
    values: list[float]


def over_ranks(everyones: Sequence[dict[str, OfRank]]) -> dict[str, list[float]]:
    """Value by value over the ranks; the same on each of them."""
    for rank, theirs in enumerate(everyones):
        problem = _difference(rank, theirs, everyones[0])
        if problem:
            raise TrainingError(problem)
    return {
        name: _combined(reduce, [theirs[name].values for theirs in everyones])
        for name, (reduce, _) in everyones[0].items()
    }


def _combined(reduce: str, values: list[list[float]]) -> list[float]:
    if len(values) == 1:
        return values[0]
    table = torch.tensor(values, dtype=torch.float64)
    if reduce == "max":
        table = table.amax(0)  # NaN wins
    else:
        table = table.mean(0) if reduce == "mean" else table.sum(0)
    combined: list[float] = table.tolist()
    return combined


def _difference(rank: int, theirs: dict[str, OfRank], first: dict[str, OfRank]) -> str:
    told = []
    if missing := first.keys() - theirs.keys():
        told.append(f"did not put {listing(missing)}")
    if added := theirs.keys() - first.keys():
        told.append(f"put {listing(added)}, which rank 0 did not")
    for name in sorted(first.keys() & theirs.keys()):
        one, other = first[name], theirs[name]
        if one.reduce != other.reduce:
            told.append(f"put {name} with reduce={other.reduce}, rank 0 with {one.reduce}")
        elif len(one.values) != len(other.values):
            told.append(f"put {name} {len(other.values)} times, rank 0 {len(one.values)} times")
    if not told:
        return ""
    return (
        f"metrics put with `reduce` must be put by all ranks, equally often: since they were last "
        f"read, rank {rank} {'; '.join(told)}. Put them on every rank, or with reduce=None."
    )
