"""DATA.HOLD_OUT: a share of TRAIN's images is TEST, and is not trained on.

Which images these are depends on the options and on what the source holds alone: TRAIN and TEST
find the same ones, on every rank and in every engine. Drawn by numpy's legacy generator, whose
stream is the same in every version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.classes import Column
from sslengine.data.manifest.subset import Rows
from sslengine.data.options import HoldOut
from sslengine.data.sources.base import DataSource
from sslengine.errors import DataError

WHERE = "config.DATA.HOLD_OUT"


def rows_of(
    options: HoldOut, split: str, sources: Sequence[DataSource], labels: Column | None
) -> Rows:
    """The numbers of the split's samples, in order. labels: of all samples, if they are known."""
    total = len(sources[0])
    if not options.SHARE:
        return range(total)
    draw = np.random.RandomState(options.SEED)
    if options.GROUP_COLUMN:
        groups = sources[0].column(options.GROUP_COLUMN, f"{WHERE}.GROUP_COLUMN")
        held = _whole_groups(draw, groups, options.SHARE)
    elif options.STRATIFIED:
        held = _of_each_class(draw, labels, options.SHARE)
    else:
        held = draw.permutation(total)[: round(options.SHARE * total)]
    if not 0 < len(held) < total:
        raise DataError(
            f"{WHERE}.SHARE: {options.SHARE:g} of the {total} images of TRAIN"
            f"{' in whole groups' if options.GROUP_COLUMN else ''} is "
            f"{'all' if len(held) else 'none'} of them; both splits need some."
        )
    is_held = np.zeros(total, np.bool_)
    is_held[held] = True
    return np.flatnonzero(is_held if split == "TEST" else ~is_held)


def _of_each_class(
    draw: np.random.RandomState, labels: Column | None, share: float
) -> NDArray[np.int64]:
    """The share of each class, rounded; of a class with one image none."""
    if labels is None or labels.ndim != 1:
        raise DataError(
            f"{WHERE}.STRATIFIED needs LABEL_SOURCES with one class for each image. Set it to "
            f"false for a draw from all images."
        )
    chosen = []
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label))
        chosen.append(members[: min(round(share * len(members)), len(members) - 1)])
    return np.concatenate(chosen)


def numbers_of_groups(column: Sequence[Any]) -> NDArray[np.int64]:
    """A number for each value. Spaces around a value do not count, as around labels."""
    names = np.char.strip(np.asarray(column).astype(str))
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _whole_groups(
    draw: np.random.RandomState, column: Sequence[Any], share: float
) -> NDArray[np.int64]:
    """Groups in random order, each that does not exceed the share."""
    group = numbers_of_groups(column)
    sizes, wanted = np.bincount(group), share * len(group)
    chosen: list[int] = []
    for each in draw.permutation(len(sizes)):
        if sizes[[*chosen, each]].sum() <= wanted + 0.5:
            chosen.append(int(each))
    return np.flatnonzero(np.isin(group, chosen))
