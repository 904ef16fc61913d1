"""Losses and metrics of all ranks by a single all-reduce of one tensor, of one size on all ranks.

    [ signature (4 numbers) | mean and sum: the value; max: a place for each rank | unused ]

Ranks must have put the same names equally often. Each rank sends two hashes of its names, and their
squares: the mean of squares equals the square of the mean only if all hashes are equal. Values that
do not fit are sent after that check, when their number is known to be the same on all ranks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sslengine.distributed.collectives import gather_objects, sum_in_place
from sslengine.distributed.process_group import backend_device
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import TrainingError, listing
from sslengine.monitor.host import Number, in_order, on_host

Signature = Mapping[str, tuple[str, int, tuple[tuple[str, ...], ...]]]

REDUCTIONS = (None, "mean", "max", "sum")
_SIZE, _HEAD = 1024, 4  # numbers


class OfRank(NamedTuple):
    """What one rank put under one name since metrics were last read."""

    reduce: str
    values: Sequence[Number]
    # Of losses: the names of each step's parts, which must be the same on all ranks.
    parts: tuple[tuple[str, ...], ...] = ()


class Exchange:
    """Of one read of metrics. `sent` is to be read with what else is read, then `values`."""

    def __init__(self, mine: Mapping[str, OfRank]) -> None:
        """The same names in the same order on all ranks, or `values` raises an error."""
        device = backend_device()
        rows = {name: in_order(mine[name].values, device) for name in sorted(mine)}
        self._signature: Signature = {
            name: (mine[name].reduce, len(row), mine[name].parts) for name, row in rows.items()
        }
        payload = torch.cat([in_order(_hashes(self._signature), device), *_places(mine, rows)])
        self.sent = torch.zeros(_SIZE, dtype=torch.float64, device=device)
        fits = payload[:_SIZE]
        self.sent[: len(fits)] = fits
        self._rest, self._length = payload[len(fits) :], len(payload) - _HEAD
        sum_in_place(self.sent)

    def values(self, sent: Sequence[float]) -> dict[str, list[float]]:
        """Value by value over the ranks; the same on each of them. `sent`: on the host."""
        ranks = world_size()
        if any(ranks * sent[at + 2] != sent[at] ** 2 for at in (0, 1)):
            raise TrainingError(_differences(gather_objects(self._signature)))
        sums = list(sent[_HEAD : _HEAD + self._length])
        if len(self._rest):
            sums += on_host([sum_in_place(self._rest)])[0]
        found, at = {}, 0
        for name, (reduce, count, _) in self._signature.items():
            each = ranks if reduce == "max" else 1
            rows = [sums[at + n * each : at + (n + 1) * each] for n in range(count)]
            found[name] = [_combined(reduce, row, ranks) for row in rows]
            at += count * each
        return found


def _places(mine: Mapping[str, OfRank], rows: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """What is summed over ranks."""
    for name, row in rows.items():
        if mine[name].reduce == "max":
            places = row.new_zeros(len(row), world_size())
            places[:, rank()] = row
            row = places.flatten()
        yield row


def _combined(reduce: str, row: Sequence[float], ranks: int) -> float:
    if reduce == "max":
        return math.nan if any(map(math.isnan, row)) else max(row)
    return row[0] / ranks if reduce == "mean" else row[0]


def _hashes(signature: Signature) -> list[float]:
    """Two of 20 bits, and their squares: the sum over 4,096 ranks is exact in double precision."""
    digest = hashlib.blake2b(repr(sorted(signature.items())).encode(), digest_size=5).digest()
    both = int.from_bytes(digest, "big")
    one, two = float(both >> 20), float(both & 0xFFFFF)
    return [one, two, one * one, two * two]


def _differences(everyones: Sequence[Signature]) -> str:
    found = (_difference(number, theirs, everyones[0]) for number, theirs in enumerate(everyones))
    return next(filter(None, found))


def _difference(number: int, theirs: Signature, first: Signature) -> str:
    problems = []
    if missing := first.keys() - theirs.keys():
        problems.append(f"did not put {listing(missing)}")
    if added := theirs.keys() - first.keys():
        problems.append(f"put {listing(added)}, which rank 0 did not")
    for name in sorted(first.keys() & theirs.keys()):
        (one, ours, parts), (other, times, others) = first[name], theirs[name]
        if parts != others:
            first_s, own = next(pair for pair in zip(parts, others) if pair[0] != pair[1])
            problems.append(f"has the losses {listing(own)}, rank 0 {listing(first_s)}")
        elif one != other:
            problems.append(f"put {name} with reduce={other}, rank 0 with {one}")
        elif ours != times:
            problems.append(f"put {name} {times} times, rank 0 {ours} times")
    if not problems:
        return ""
    return (
        f"metrics put with `reduce` must be put by all ranks, equally often: since they were last "
        f"read, rank {number} {'; '.join(problems)}. Put them on every rank, or with reduce=None."
    )
