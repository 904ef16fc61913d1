"""Features as matrices that are read in blocks, and the checks that every evaluation needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from sslengine.distributed.collectives import any_rank
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import DataError

# Rows of a block.
BLOCK = 8192
# Numbers of a matrix that is read whole: 256 MB in single precision.
SMALL = 2**26
SEVERAL = "this protocol is not for images of several classes."
OVERFLOW = (
    " float16, as which they are stored, ends at 65,504; for the features of a run there is "
    "config.EVALUATE.DTYPE=bfloat16."
)


class Rows(Protocol):
    """A tensor, a matrix of numpy, or a store's layer: see store.py."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice) -> Any: ...


class Chosen:
    """Some rows of others, whose numbers ascend, as if they were a matrix."""

    def __init__(self, rows: Rows, numbers: Tensor) -> None:
        self._rows, self._numbers = rows, numbers.cpu()
        self.shape = torch.Size([len(numbers), *rows.shape[1:]])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Tensor:
        some = self._numbers[rows]
        if not len(some):
            return torch.as_tensor(self._rows[0:0])
        first = int(some[0])
        block = torch.as_tensor(self._rows[first : int(some[-1]) + 1])
        return block[(some - first).to(block.device)]


def held(features: Rows) -> Rows:
    """Read features into memory, if they are few."""
    few = torch.Size(features.shape).numel() <= SMALL
    return torch.as_tensor(features[0 : len(features)]) if few else features


def own_share(count: int, over_ranks: bool) -> range:
    """Return which of `count` rows this rank computes; all, if ranks do not share the work."""
    ranks, own = (world_size(), rank()) if over_ranks else (1, 0)
    return range(count * own // ranks, count * (own + 1) // ranks)


def blocks(features: Rows, size: int = BLOCK, among: range | None = None) -> Iterator[Tensor]:
    """Yield matrices in the order of the rows. among: the numbers of the rows that are read."""
    among = range(len(features)) if among is None else among
    for start in range(among.start, among.stop, size):
        yield torch.as_tensor(features[start : min(start + size, among.stop)]).flatten(1)


def rows_at(features: Rows, numbers: Tensor) -> Tensor:
    """Read some rows, whose numbers ascend, block by block."""
    found = []
    for start in range(0, len(features), BLOCK):
        some = numbers[(numbers >= start) & (numbers < start + BLOCK)]
        if len(some):
            block = torch.as_tensor(features[start : start + BLOCK])
            found.append(block[(some - start).to(block.device)])
    return torch.cat(found) if found else torch.as_tensor(features[0:0])


def expect_finite(features: Rows, split: str, over_ranks: bool = False) -> None:
    among = own_share(len(features), over_ranks)
    bad = not all(block.isfinite().all() for block in blocks(features, among=among))
    if any_rank(bad) if over_ranks else bad:
        half = torch.as_tensor(features[0:1]).dtype == torch.float16
        raise DataError(f"some {split} features are NaN or infinite.{OVERFLOW * half}")


def expect_one_class_each(labels: Tensor) -> None:
    if labels.ndim != 1:
        raise DataError(SEVERAL)


def check_features(
    judge: str,
    train_features: Rows,
    train_labels: Tensor,
    test_features: Rows,
    over_ranks: bool = False,
) -> None:
    """Raise DataError unless rows are finite, of one width, and training rows have classes."""
    if train_labels.shape[:1] != train_features.shape[:1] or train_labels.ndim > 2:
        raise DataError(
            f"{judge}: expected one label for each of the {len(train_features)} training "
            f"features, got labels of shape {tuple(train_labels.shape)}."
        )
    if train_labels.ndim == 2 and not ((train_labels >= -1) & (train_labels <= 1)).all():
        raise DataError(f"{judge}: expected indicators 1, 0, or -1 for unknown, in the rows.")
    if not train_labels.numel() or (train_labels.ndim == 1 and train_labels.min() < 0):
        raise DataError(f"{judge}: expected training labels that are class numbers, 0 and up.")
    if train_features.shape[1:] != test_features.shape[1:]:
        raise DataError(
            f"{judge}: training features of shape {tuple(train_features.shape[1:])} cannot be "
            f"compared with test features of shape {tuple(test_features.shape[1:])}. "
            f"Do they come from one model and one layer?"
        )
    for split, features in (("training", train_features), ("test", test_features)):
        try:
            expect_finite(features, split, over_ranks)
        except DataError as error:
            raise DataError(f"{judge}: {error}") from None


def note_leak(train: Rows, test: Rows, what: str) -> str:
    """Note test rows that are training rows too, to the bit. what: the rows are of these."""
    count = count_copies(train, test)
    return f"{count} of {len(test)} test {what} are also training {what}" if count else ""


def count_copies(train: Rows, test: Rows) -> int:
    """Count test rows that are training rows too: what they score says nothing of others."""
    known = set(_hashes(train))
    return sum(each in known for each in _hashes(test))


def _hashes(features: Rows) -> Iterator[int]:
    for block in blocks(features):
        for row in block.float().cpu().numpy():
            yield hash(row.tobytes())
