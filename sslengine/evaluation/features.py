"""Features as matrices that are read in blocks, and the checks that every evaluation needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from sslengine.errors import DataError

# Rows of a block.
BLOCK = 8192


class Rows(Protocol):
    """A tensor, a matrix of numpy, or a store's layer: see store.py."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice) -> Any: ...


def blocks(features: Rows, size: int = BLOCK) -> Iterator[Tensor]:
    """As matrices, in the order of the rows."""
    for start in range(0, len(features), size):
        yield torch.as_tensor(features[start : start + size]).flatten(1)


def rows_at(features: Rows, numbers: Tensor) -> Tensor:
    """Some rows, whose numbers ascend, read block by block."""
    found = []
    for start in range(0, len(features), BLOCK):
        some = numbers[(numbers >= start) & (numbers < start + BLOCK)]
        if len(some):
            block = torch.as_tensor(features[start : start + BLOCK])
            found.append(block[(some - start).to(block.device)])
    return torch.cat(found) if found else torch.as_tensor(features[0:0])


def expect_finite(features: Rows, split: str) -> None:
    if not all(block.isfinite().all() for block in blocks(features)):
        raise DataError(f"some {split} features are NaN or infinite.")


def check_features(
    judge: str, train_features: Tensor, train_labels: Tensor, test_features: Tensor
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
        if not features.isfinite().all():
            raise DataError(f"{judge}: some {split} features are NaN or infinite.")
