"""Labels of one split in the numbers of another, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sslengine.data.manifest.classes import Classes, Labels, in_numbers_of
from sslengine.errors import DataError


def _labels(numbers: list[int], *names: str) -> Labels:
    return Labels(np.array(numbers), names, "TEST's")


def _moved(train: Labels, test: Labels) -> list[int]:
    found: list[int] = in_numbers_of(Classes.of(train), test, lambda i: f"sample {i}").tolist()
    return found


ANIMALS = _labels([0, 1, 2], "bird", "cat", "dog")
NUMBERS = _labels([0, 1, 5])


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        (ANIMALS, _labels([0, 1, 1], "cat", "dog"), [1, 2, 2]),
        (ANIMALS, _labels([1, 0], "dog", "bird"), [0, 2]),
        # A class that is named and has no sample does not matter.
        (ANIMALS, _labels([0, 0], "cat", "worm"), [1, 1]),
        # Numbers among names: class numbers, unless the names are numbers.
        (ANIMALS, _labels([2, 0, -1]), [2, 0, -1]),
        (_labels([0, 1, 2], "1", "10", "2"), _labels([2, 10]), [2, 1]),
        (_labels([0, 1], "007", "9"), _labels([9, 7]), [1, 0]),
        (NUMBERS, _labels([0, 1], "1", "5"), [1, 5]),
        (NUMBERS, _labels([5, -1, 0]), [5, -1, 0]),
    ],
)
def test_the_same_class_has_the_same_number(
    train: Labels, test: Labels, expected: list[int]
) -> None:
    assert _moved(train, test) == expected


@pytest.mark.parametrize(
    ("train", "test", "told"),
    [
        (ANIMALS, _labels([0, 1, 1], "cat", "dgo"), "'dgo' is sample 1"),
        (ANIMALS, _labels([0, 3]), "'3' is sample 1"),
        (NUMBERS, _labels([0, 7, 7]), "'7' is sample 1"),
        (NUMBERS, _labels([0, 1], "1", "cat"), "'cat' is sample 1"),
    ],
)
def test_a_class_that_train_lacks_is_named(train: Labels, test: Labels, told: str) -> None:
    with pytest.raises(DataError, match=f"TEST's: 1 of its classes .*\n.*{told}"):
        _moved(train, test)


def test_rows_of_indicators_stay_what_they_are() -> None:
    rows = Labels(np.eye(2))
    assert in_numbers_of(Classes.of(ANIMALS), rows, str) is rows.column
    assert _moved(rows, ANIMALS) == [0, 1, 2]
