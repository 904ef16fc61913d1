"""DATA_LIMIT: which samples of a dataset are used. The same on every rank; VISSL's choice.

The legacy generator is meant: its stream is frozen, so a subset is the same under every
version of numpy, and is the one that VISSL takes under the same seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.classes import Column
from sslengine.data.options import SplitOptions
from sslengine.data.sources.class_numbers import NO_CLASS
from sslengine.errors import DataError

Rows = NDArray[np.int64] | range


def choose_rows(options: SplitOptions, split: str, total: int, labels: Column | None) -> Rows:
    """The numbers of the samples that are used, among `total`."""
    limit, skip = options.DATA_LIMIT, options.DATA_LIMIT_SAMPLING.SKIP_NUM_SAMPLES
    where = f"config.DATA.{split}.DATA_LIMIT"
    if limit < 0 or (limit == total and not skip):
        return range(total)
    if limit + skip > total:
        skipped = f" after {skip} skipped ones" if skip else ""
        raise DataError(
            f"{where}: requires {limit} samples{skipped}; the dataset has {total}. -1 takes all."
        )
    draw = np.random.RandomState(options.DATA_LIMIT_SAMPLING.SEED)
    if not options.DATA_LIMIT_SAMPLING.IS_BALANCED:
        return draw.choice(total, skip + limit, replace=False)[skip:]
    if labels is None or labels.ndim != 1:
        raise DataError(f"{where}: IS_BALANCED needs LABEL_SOURCES with one class for each image.")
    return _balanced(draw, labels, limit, skip, where)


def part(column: Column | range, rows: Rows) -> Any:
    """The labels, or numbers, of these samples."""
    if isinstance(rows, range):
        return column
    return rows if isinstance(column, range) else column[rows]


def _balanced(
    draw: np.random.RandomState, labels: Column, limit: int, skip: int, where: str
) -> NDArray[np.int64]:
    """As many of every class; where it does not divide, one more of each of the first classes."""
    classes = np.unique(labels[labels != NO_CLASS])
    if not 0 < len(classes) <= limit:
        raise DataError(f"{where}: {limit} samples cannot be balanced over {len(classes)} classes.")
    chosen = []
    for number, label in enumerate(classes):
        members = np.flatnonzero(labels == label)
        wanted, skipped = (
            count // len(classes) + (number < count % len(classes)) for count in (limit, skip)
        )
        if wanted + skipped > len(members):
            raise DataError(
                f"{where}: IS_BALANCED requires {wanted + skipped} samples of class {label}; "
                f"it has {len(members)}."
            )
        chosen.append(draw.choice(members, skipped + wanted, replace=False)[skipped:])
    return np.concatenate(chosen)
