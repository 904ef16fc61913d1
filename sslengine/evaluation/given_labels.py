"""Labels of features in files: class numbers, names, or rows of indicators.

Class numbers are whole; -1: no label. Names are numbered in TRAIN's order. An indicator is 1, 0, or
-1 for unknown; where the classes have names, columns of the test set are put in TRAIN's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.errors import DataError, listing, nearest, readable

LABELS = ("label", "labels", "target", "targets", "y", "class")
INDICATOR = "label_"  # and the name of the class whose indicators the column holds
NUMBERS, TEXT, INDICATORS = "numbers", "text", "rows of indicators"


class Labels(NamedTuple):
    where: str  # the file
    values: NDArray[Any]  # unchanged
    classes: tuple[str, ...] = ()  # of rows of indicators, where the file names them


def numbered(train: Labels, test: Labels) -> tuple[Tensor, Tensor]:
    """Class numbers, or rows of indicators, of the same classes."""
    kind, other = _kind(train.values), _kind(test.values)
    if kind != other:
        raise DataError(
            f"labels of {train.where} are {kind}, those of {test.where} are {other}: "
            f"expected the same kind in both."
        )
    if kind == TEXT:
        return _by_names(train.values, test.values)
    wanted = _in_order(train, test) if kind == INDICATORS else test.values
    return _whole(train.values), _whole(wanted)


def _kind(labels: NDArray[Any]) -> str:
    if labels.ndim > 1:
        return INDICATORS
    known = labels[~np.isnan(labels)] if labels.dtype.kind == "f" else labels
    are_whole = known.dtype.kind in "iub" or (known.dtype.kind == "f" and (known % 1 == 0).all())
    return NUMBERS if are_whole else TEXT


def _whole(labels: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.nan_to_num(labels, nan=-1).astype(np.int64))


def _in_order(train: Labels, test: Labels) -> NDArray[Any]:
    """The test indicators with their columns in the order of the training ones."""
    if train.classes and test.classes:
        if sorted(train.classes) != sorted(test.classes):
            raise DataError(
                f"labels of {train.where} are of the classes {listing(train.classes)}, those "
                f"of {test.where} of {listing(test.classes)}: expected the same in both."
            )
        return test.values[:, [test.classes.index(name) for name in train.classes]]
    widths = train.values.shape[1], test.values.shape[1]
    if widths[0] != widths[1]:
        raise DataError(
            f"labels of {train.where} are rows of {widths[0]} indicators, those of "
            f"{test.where} rows of {widths[1]}: expected one for each class in both."
        )
    return test.values


def _by_names(train: NDArray[Any], test: NDArray[Any]) -> tuple[Tensor, Tensor]:
    names, numbers = np.unique(train.astype(str), return_inverse=True)
    wanted = test.astype(str)
    places = np.searchsorted(names, wanted).clip(max=len(names) - 1)
    if not (names[places] == wanted).all():
        unknown = str(wanted[names[places] != wanted][0])
        raise DataError(
            f"the test features have the class {unknown!r}, which the training features lack. "
            f"{nearest(unknown, names.tolist())}".rstrip()
        )
    return torch.from_numpy(numbers), torch.from_numpy(places)


# ---- in files


def in_arrays(where: str, held: Mapping[str, NDArray[Any]]) -> Labels | None:
    """Rows of indicators may have an array `classes` of names."""
    name = next((name for name in LABELS if name in held), None)
    if name is None:
        return None
    classes, shape = held.get("classes"), held[name].shape
    if classes is None or len(shape) < 2 or classes.shape != shape[1:]:
        return Labels(where, held[name])
    return Labels(where, held[name], tuple(map(str, classes)))


def in_table(
    where: str,
    names: Sequence[str],
    column: Callable[[str], Sequence[Any]],
    as_array: Callable[[Sequence[Any]], NDArray[Any]],
) -> Labels | None:
    """Of a table: in the column `label`, or in label_A, label_B ..., one for each class."""
    single = [name for name in LABELS if name in names]
    if single:
        return Labels(where, as_array(column(single[0])))
    several = [name for name in names if name.startswith(INDICATOR)]
    if len(several) < 2:
        return None
    indicators = [_indicators(f"{where}: column {name!r}", column(name)) for name in several]
    classes = tuple(name.removeprefix(INDICATOR) for name in several)
    return Labels(where, np.stack(indicators, 1), classes)


def _indicators(where: str, cells: Sequence[Any]) -> NDArray[Any]:
    found = [_CELLS.get(str(cell).lower()) for cell in cells]
    if None in found:
        wrong = readable(cells[found.index(None)])[:80]
        raise DataError(
            f"{where}: expected 1, 0, or nothing for unknown, as in a column for each class; got "
            f"{wrong!r}."
        )
    return np.array(found, np.int8)


_CELLS = {
    **dict.fromkeys(("1", "1.0", "true"), 1),
    **dict.fromkeys(("0", "0.0", "false"), 0),
    **dict.fromkeys(("", "nan", "none", "-1", "-1.0"), -1),
}


def of_text(labels: Sequence[str]) -> NDArray[Any]:
    try:
        return np.array([int(each) for each in labels])
    except ValueError:
        return np.array(labels)
