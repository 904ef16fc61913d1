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
        # A text among TRAIN's numbers makes names of them; TEST may have numbers alone.
        (_labels([0, 1, 2], "0.5", "1.0", "2.0"), _labels([2, 1]), [2, 1]),
        (_labels([0, 1, 2], "1", "2", "unknown"), _labels([2, 1]), [1, 0]),
        (_labels([0, 1, 2], "-1.5", "0", "1"), _labels([1, 0]), [2, 1]),
        (_labels([0, 1, 2], "1.1", "1.10", "1.2"), _labels([0, 1], "1.10", "1.2"), [1, 2]),
        (NUMBERS, _labels([0, 1], "1", "5"), [1, 5]),
        (NUMBERS, _labels([5, -1, 0]), [5, -1, 0]),
        # The folders of all classes, of which TRAIN's list has the numbers.
        (NUMBERS, _labels([5, 0, 1], "ant", "bee", "cat", "dog", "eel", "fly"), [5, 0, 1]),
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
        (_labels([0, 1]), _labels([0, 1], "0", "1.5"), "'1.5' is sample 1"),
        (_labels([0, 1]), _labels([0], "0.5", "1.5"), "'0.5' is sample 0"),
        (_labels([0, 1], "0.5", "x"), _labels([1]), "'1' is sample 0"),
        # Folders of five classes do not say which of six numbers they have.
        (NUMBERS, _labels([0, 0], "ant", "bee", "cat", "dog", "eel"), "'ant' is sample 0"),
    ],
)
def test_a_class_that_train_lacks_is_named(train: Labels, test: Labels, told: str) -> None:
    with pytest.raises(DataError, match=f"TEST's: 1 of its classes .*\n.*{told}"):
        _moved(train, test)


def _rows(rows: list[list[int]], *names: str, indicators: bool = False) -> Labels:
    return Labels(np.array(rows, np.int8), names, "TEST's", indicators)


PETS = _rows([[1, 0, 1], [0, 1, 0]], "bird", "cat", "dog")
LISTS = _rows([[1, 0, 0, 1], [0, 0, 1, 0]])  # of the numbers 0, 2, 3
GIVEN = _rows([[1, 0, -1], [0, 1, 0]], indicators=True)


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        (PETS, _rows([[1, 1], [0, 1]], "cat", "dog"), [[0, 1, 1], [0, 0, 1]]),
        (PETS, _rows([[0, 1], [-1, -1]], "dog", "bird"), [[1, 0, 0], [-1, -1, -1]]),
        (PETS, _rows([[1, 0], [0, 0]], "cat", "worm"), [[0, 1, 0], [0, 0, 0]]),
        (LISTS, _rows([[1, 0, 1]]), [[1, 0, 1, 0]]),
        # What a file has stays: nobody knows more of its columns than their place.
        (GIVEN, _rows([[0, 0, 1]], indicators=True), [[0, 0, 1]]),
    ],
)
def test_of_several_classes_each_has_the_same_column(
    train: Labels, test: Labels, expected: list[list[int]]
) -> None:
    assert in_numbers_of(Classes.of(train), test, str).tolist() == expected


@pytest.mark.parametrize(
    ("train", "test", "told"),
    [
        (PETS, _rows([[0, 1], [1, 0]], "cta", "dog"), r"1 of its classes.*'cat'[\s\S]*'cta' is 1"),
        (LISTS, _rows([[1, 0, 0], [0, 1, 0]]), r"1 of its classes[\s\S]*'1' is 1"),
        (LISTS, _rows([[0, 0, 0, 0, 1]]), r"1 of its classes[\s\S]*'4' is 0"),
        (GIVEN, _rows([[0, 1]], indicators=True), "have 2 columns, and in TRAIN .* 3"),
        (ANIMALS, PETS, r"is several classes \(a row of indicators\), and in TRAIN.* one class"),
        (GIVEN, ANIMALS, "is one class, and in TRAIN .* several"),
    ],
)
def test_what_does_not_go_with_train(train: Labels, test: Labels, told: str) -> None:
    with pytest.raises(DataError, match=f"TEST's: .*{told}"):
        in_numbers_of(Classes.of(train), test, str)


def test_probabilities_stay_what_they_are() -> None:
    rows = Labels(np.array([[0.2, 0.8]]))
    for train in (ANIMALS, PETS, rows):
        assert in_numbers_of(Classes.of(train), rows, str) is rows.column
    assert _moved(rows, ANIMALS) == [0, 1, 2]
