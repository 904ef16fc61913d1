"""Labels of features in files: class numbers, names, or rows of indicators.

Class numbers are whole; -1: no label. Names are numbered in TRAIN's order; an empty name: no label.
An indicator is 1, 0, or -1 for unknown; where the classes have names, columns of the test set are
put in TRAIN's order.
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
NOTHING = "no labels"  # of a column in which all are missing


class GivenLabels(NamedTuple):
    where: str  # the file
    values: NDArray[Any]  # unchanged
    classes: tuple[str, ...] = ()  # of rows of indicators, where the file names them


def numbered(train: GivenLabels, test: GivenLabels) -> tuple[Tensor, Tensor]:
    """Class numbers, or rows of indicators, of the same classes."""
    kinds = _kind(train.values), _kind(test.values)
    if len({*kinds} - {NOTHING}) > 1:
        raise DataError(
            f"labels of {train.where} are {kinds[0]}, those of {test.where} are {kinds[1]}: "
            f"expected the same kind in both."
        )
    if NOTHING in kinds:
        train, test = _take_kind(train, test), _take_kind(test, train)
    if TEXT in kinds:
        return _number_names(train.values, test.values)
    wanted = _sort_columns(train, test) if INDICATORS in kinds else test.values
    return _whole(train.values), _whole(wanted)


def _kind(labels: NDArray[Any]) -> str:
    if labels.ndim > 1:
        return INDICATORS
    if not _any_known(labels):
        return NOTHING
    known = labels[~np.isnan(labels)] if labels.dtype.kind == "f" else labels
    are_whole = known.dtype.kind in "iub" or (known.dtype.kind == "f" and (known % 1 == 0).all())
    return NUMBERS if are_whole else TEXT


def _any_known(labels: NDArray[Any]) -> bool:
    if labels.dtype.kind in "iufb":
        return bool((labels >= 0).any())
    return bool((labels.astype(str) != "").any())


def _take_kind(labels: GivenLabels, other: GivenLabels) -> GivenLabels:
    """Replace labels that are all missing by missing ones of the other's kind."""
    if _kind(labels.values) != NOTHING:
        return labels
    missing = "" if _kind(other.values) == TEXT else -1
    return GivenLabels(
        labels.where, np.full((len(labels.values), *other.values.shape[1:]), missing)
    )


def _whole(labels: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.nan_to_num(labels, nan=-1).astype(np.int64))


def _sort_columns(train: GivenLabels, test: GivenLabels) -> NDArray[Any]:
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


def _number_names(train: NDArray[Any], test: NDArray[Any]) -> tuple[Tensor, Tensor]:
    given, wanted = train.astype(str), test.astype(str)
    names = np.unique(given[given != ""])
    is_new = (wanted != "") & ~np.isin(wanted, names)
    if len(names) and is_new.any():
        unknown = str(wanted[is_new][0])
        raise DataError(
            f"the test features have the class {unknown!r}, which the training features lack. "
            f"{nearest(unknown, names.tolist())}".rstrip()
        )
    numbers, places = (
        np.where(each == "", -1, np.searchsorted(names, each)) for each in (given, wanted)
    )
    return torch.from_numpy(numbers), torch.from_numpy(places)


# ---- in files


def find_in_arrays(where: str, held: Mapping[str, NDArray[Any]]) -> GivenLabels | None:
    """Rows of indicators may have an array `classes` of names."""
    name = next((name for name in LABELS if name in held), None)
    if name is None:
        return None
    classes, shape = held.get("classes"), held[name].shape
    if classes is None or len(shape) < 2 or classes.shape != shape[1:]:
        return GivenLabels(where, held[name])
    return GivenLabels(where, held[name], tuple(map(str, classes)))


def find_in_table(
    where: str,
    names: Sequence[str],
    column: Callable[[str], Sequence[Any]],
    as_array: Callable[[Sequence[Any]], NDArray[Any]],
) -> GivenLabels | None:
    """Find a table's labels: the column `label`, or label_A, label_B ..., one for each class."""
    single = [name for name in LABELS if name in names]
    if single:
        try:
            return GivenLabels(where, as_array(column(single[0])))
        except ValueError as error:
            raise DataError(f"{where}: column {single[0]!r}: {error}") from error
    several = [name for name in names if name.startswith(INDICATOR)]
    if len(several) < 2:
        return None
    indicators = [_indicators(f"{where}: column {name!r}", column(name)) for name in several]
    classes = tuple(name.removeprefix(INDICATOR) for name in several)
    return GivenLabels(where, np.stack(indicators, 1), classes)


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


def parse_text(labels: Sequence[str]) -> NDArray[Any]:
    """Numbers, if all are that are not empty; otherwise names."""
    numbers = [_number(each) for each in labels]
    if None not in numbers:
        return np.array(numbers)
    return np.array([each if each.strip() else "" for each in labels])


def _number(cell: str) -> int | None:
    """-1 for no label; None: not a whole number."""
    if not cell.strip():
        return -1
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        value = float(cell)
    except ValueError:
        return None
    if np.isnan(value):
        return -1
    return int(value) if value.is_integer() else None


def parse_objects(labels: Sequence[Any]) -> NDArray[Any]:
    """Make labels of Python's values: numbers, names or lists of indicators. None: no label."""
    known = [each for each in labels if each is not None]
    first = known[0] if known else -1
    missing: Any = -1 if isinstance(first, (int, float)) else ""
    if isinstance(first, list):
        missing = [-1] * len(first)
    return np.asarray([missing if each is None else each for each in labels])
