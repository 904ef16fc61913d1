"""Read numbers that wait on the device: one all-reduce for those of all ranks, and one copy.

What ranks add up is a row of one size on all ranks:

    [ a hash of each rank's names | mean and sum: the value; max: a place for each rank | unused ]

Ranks must have put the same names equally often, or the hashes differ. Numbers that do not fit are
sent after that is known, when all ranks have equally many.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.process_group import backend_device
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import TrainingError
from sslengine.precision import widest

Number = Tensor | float

REDUCTIONS = (None, "mean", "max", "sum")
_SIZE = 1024  # numbers after the hashes
_SENT = ""  # no metric has this name


class Column(NamedTuple):
    """All that was put under one name since metrics were last read."""

    values: Sequence[Number]
    reduce: str | None = None  # over ranks; None: each rank has its own
    parts: Sequence[Sequence[str]] = ()  # of losses: the names of each step's, equal on all ranks


def read_columns(columns: Mapping[str, Column]) -> dict[str, list[float]]:
    """Return the numbers of each column on the host. Collective; waits for the device."""
    ranks = world_size()
    shared = {name: columns[name] for name in sorted(columns) if ranks > 1 and columns[name].reduce}
    rows = {name: join(each.values) for name, each in columns.items() if name not in shared}
    if ranks == 1:
        return _copy_to_host(rows)
    device = backend_device()
    common = {name: join(each.values).to(device) for name, each in shared.items()}
    payload = torch.cat([_hash_of_rank(shared, common).to(device), *_places(shared, common)])
    rest = payload[ranks + _SIZE :]
    sent = payload.new_zeros(ranks + _SIZE)
    sent[: len(payload)] = payload[: ranks + _SIZE]
    found = _copy_to_host({**rows, _SENT: sum_in_place(sent)})
    read = found.pop(_SENT)
    if len({*read[:ranks]}) > 1:
        raise TrainingError(
            "ranks have put different metrics since they were last read: what is put with `reduce` "
            "must be put by all ranks, equally often, and their losses must have the same parts. "
            f"This rank has put {', '.join(map(repr, shared)) or 'none'}. Put them on every rank, "
            "or with reduce=None."
        )
    numbers = iter([*read[ranks:], *sum_in_place(rest).tolist()] if len(rest) else read[ranks:])
    for name, each in shared.items():
        places = ranks if each.reduce == "max" else 1
        found[name] = [
            _combine(each.reduce, list(islice(numbers, places))) for _ in range(len(common[name]))
        ]
    return found


def join(values: Sequence[Number]) -> Tensor:
    """Put all numbers in one row of double precision, in order, on their device if it has that."""
    tensors = [each for each in values if isinstance(each, Tensor)]
    if not tensors:
        return torch.tensor(values, dtype=torch.float64)
    if len(tensors) == len(values) and len({(each.device, each.dtype) for each in tensors}) == 1:
        alone = all(each.ndim == 0 for each in tensors)  # most are: twice as fast
        row = torch.stack(tensors) if alone else torch.cat([each.reshape(-1) for each in tensors])
        return row.double() if widest(row.device) == torch.float64 else row.cpu().double()
    rows = [join([each]) for each in values]
    device = next((row.device for row in rows if row.device.type != "cpu"), rows[0].device)
    return torch.cat([row.to(device) for row in rows])


def _copy_to_host(rows: Mapping[str, Tensor]) -> dict[str, list[float]]:
    read: dict[str, list[float]] = {}
    for device in {row.device for row in rows.values()}:
        there = {name: row for name, row in rows.items() if row.device == device}
        numbers = iter(torch.cat([*there.values()]).tolist())
        read |= {name: list(islice(numbers, len(row))) for name, row in there.items()}
    return read


def _hash_of_rank(shared: Mapping[str, Column], rows: Mapping[str, Tensor]) -> Tensor:
    """Return zeros, but at this rank's place 48 bits, which double precision holds."""
    told = [(name, each.reduce, len(rows[name]), each.parts) for name, each in shared.items()]
    digest = hashlib.blake2b(repr(told).encode(), digest_size=6).digest()
    hashes = torch.zeros(world_size(), dtype=torch.float64)
    hashes[rank()] = float(int.from_bytes(digest, "big"))
    return hashes


def _places(shared: Mapping[str, Column], rows: Mapping[str, Tensor]) -> Iterator[Tensor]:
    for name, row in rows.items():
        if shared[name].reduce == "max":
            places = row.new_zeros(len(row), world_size())
            places[:, rank()] = row
            row = places.flatten()
        yield row


def _combine(reduce: str | None, numbers: Sequence[float]) -> float:
    if reduce == "max":
        return math.nan if any(map(math.isnan, numbers)) else max(numbers)
    return numbers[0] / world_size() if reduce == "mean" else numbers[0]
