"""Metrics of all ranks as one, by a single all-reduce of one tensor, of the same size everywhere.

    [ signature (4 numbers) | mean and sum: the value; max: a place for each rank | unused ]

Ranks must have put the same names equally often. Each sends two hashes of what it has put, and
their squares: the mean of squares is the square of the mean where all are equal, and only there.
What finds no place is sent after that check, when its length is known to be the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sslengine.distributed.collectives import gather_objects, sum_in_place
from sslengine.distributed.process_group import backend_device
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import TrainingError, listing
from sslengine.monitor.host import Number, in_order, on_host

REDUCTIONS = (None, "mean", "max", "sum")
_SIZE, _HEAD = 1024, 4  # numbers


class OfRank(NamedTuple):
    """What one rank put under one name since metrics were last read."""

    reduce: str
    values: Sequence[Number]


class Exchange:
    """Of one read of metrics. `sent` is to be read with what else is read, then `values`."""

    def __init__(self, mine: Mapping[str, OfRank]) -> None:
        self._mine = {name: mine[name] for name in sorted(mine)}
        self._signature = {
            name: (each.reduce, len(each.values)) for name, each in self._mine.items()
        }
        device = backend_device()
        payload = self._payload(device)
        head = torch.tensor(_hashes(self._signature), dtype=torch.float64)
        self.sent = torch.zeros(_SIZE, dtype=torch.float64, device=device)
        self.sent[:_HEAD] = torch.stack([head, head.square()]).flatten()
        fits = payload[: _SIZE - _HEAD]
        self.sent[_HEAD : _HEAD + len(fits)] = fits
        self._rest, self._length = payload[len(fits) :], len(payload)
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
        for name, (reduce, count) in self._signature.items():
            each = ranks if reduce == "max" else 1
            rows = [sums[at + n * each : at + (n + 1) * each] for n in range(count)]
            found[name] = [_combined(reduce, row, ranks) for row in rows]
            at += count * each
        return found

    def _payload(self, device: torch.device) -> Tensor:
        parts = []
        for reduce, values in self._mine.values():
            own = in_order(values, device)
            if reduce == "max":
                places = own.new_zeros(len(own), world_size())
                places[:, rank()] = own
                own = places.flatten()
            parts.append(own)
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=device)


def _combined(reduce: str, row: Sequence[float], ranks: int) -> float:
    if reduce == "max":
        return math.nan if any(map(math.isnan, row)) else max(row)
    return row[0] / ranks if reduce == "mean" else row[0]


def _hashes(signature: Mapping[str, tuple[str, int]]) -> list[int]:
    """Two of 20 bits: the sum of their squares over 4,096 ranks is exact in double precision."""
    digest = hashlib.blake2b(repr(sorted(signature.items())).encode(), digest_size=5).digest()
    both = int.from_bytes(digest, "big")
    return [both >> 20, both & 0xFFFFF]


def _differences(everyones: Sequence[Mapping[str, tuple[str, int]]]) -> str:
    told = (_difference(number, theirs, everyones[0]) for number, theirs in enumerate(everyones))
    return next(filter(None, told))


def _difference(
    number: int, theirs: Mapping[str, tuple[str, int]], first: Mapping[str, tuple[str, int]]
) -> str:
    told = []
    if missing := first.keys() - theirs.keys():
        told.append(f"did not put {listing(missing)}")
    if added := theirs.keys() - first.keys():
        told.append(f"put {listing(added)}, which rank 0 did not")
    for name in sorted(first.keys() & theirs.keys()):
        (one, ours), (other, times) = first[name], theirs[name]
        if one != other:
            told.append(f"put {name} with reduce={other}, rank 0 with {one}")
        elif ours != times:
            told.append(f"put {name} {times} times, rank 0 {ours} times")
    if not told:
        return ""
    return (
        f"metrics put with `reduce` must be put by all ranks, equally often: since they were last "
        f"read, rank {number} {'; '.join(told)}. Put them on every rank, or with reduce=None."
    )
