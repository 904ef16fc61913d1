"""Labels of one split in the numbers of another, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sslengine.data.manifest.classes import (
    NO_CLASS,
    Classes,
    ClassNumbers,
    LabelColumn,
    LabelError,
    find_unlabelled,
    translate,
)
from sslengine.errors import DataError


def _labels(numbers: list[int], *names: str) -> LabelColumn:
    return LabelColumn(np.array(numbers), names, "TEST's")


def _moved(train: LabelColumn, test: LabelColumn) -> list[int]:
    found: list[int] = translate(Classes.collect(train), test, lambda i: f"sample {i}").tolist()
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
    train: LabelColumn, test: LabelColumn, expected: list[int]
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
def test_a_class_that_train_lacks_is_named(
    train: LabelColumn, test: LabelColumn, told: str
) -> None:
    with pytest.raises(DataError, match=f"TEST's: 1 of its classes .*\n.*{told}"):
        _moved(train, test)


def _rows(rows: list[list[int]], *names: str, indicators: bool = False) -> LabelColumn:
    return LabelColumn(np.array(rows, np.int8), names, "TEST's", indicators)


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
    train: LabelColumn, test: LabelColumn, expected: list[list[int]]
) -> None:
    assert translate(Classes.collect(train), test, str).tolist() == expected


@pytest.mark.parametrize(
    ("train", "test", "told"),
    [
        (PETS, _rows([[0, 1], [1, 0]], "cta", "dog"), r"1 of its classes.*'cat'[\s\S]*'cta' is 1"),
        (LISTS, _rows([[1, 0, 0], [0, 1, 0]]), r"1 of its classes[\s\S]*'1' is 1"),
        (LISTS, _rows([[0, 0, 0, 0, 1]]), r"1 of its classes[\s\S]*'4' is 0"),
        (GIVEN, _rows([[0, 1]], indicators=True), "of 2 classes, and in TRAIN .* 3"),
        (ANIMALS, PETS, "is a row of indicators of 3 .* TRAIN.* one class"),
        (GIVEN, ANIMALS, "is one class, and in TRAIN .* a row"),
    ],
)
def test_what_does_not_go_with_train(train: LabelColumn, test: LabelColumn, told: str) -> None:
    with pytest.raises(DataError, match=f"TEST's: .*{told}"):
        translate(Classes.collect(train), test, str)


def test_probabilities_stay_what_they_are() -> None:
    rows = LabelColumn(np.array([[0.2, 0.8]]))
    for train in (ANIMALS, PETS, rows):
        assert translate(Classes.collect(train), rows, str) is rows.column
    assert _moved(rows, ANIMALS) == [0, 1, 2]


def numbered(*labels: Any) -> tuple[list[int], bytes]:
    numbers = ClassNumbers()
    for label in labels:
        numbers.add(label)
    arrays = numbers.arrays()
    assert arrays["labels"].dtype == np.int32
    return arrays["labels"].tolist(), arrays["classes"].tobytes()


def test_names_in_their_order() -> None:
    assert numbered("dog", "ant", " dog ", "cat") == ([2, 0, 2, 1], b"antcatdog")


def test_numbers_written_as_floats_are_numbers() -> None:
    """As a table has them in which there was a gap once."""
    assert numbered(*(f"{number}.0" for number in range(12))) == (list(range(12)), b"")
    assert numbered(3.0, 10.0, 2.0) == ([3, 10, 2], b"")
    assert numbered("10.5", "9.5", "-3") == ([2, 1, 0], b"-39.510.5")  # classes, by size


@pytest.mark.parametrize("gap", ["", " ", "nan", "NaN", float("nan"), "-1", -1, "-1.0", None])
def test_a_gap_is_no_class_and_leaves_the_others_what_they_are(gap: Any) -> None:
    assert numbered("3", gap, "11") == ([3, NO_CLASS, 11], b"")
    assert numbered("dog", gap, "cat") == ([1, NO_CLASS, 0], b"catdog")


def several(
    *labels: Any, separator: str = "", names: Any = ()
) -> tuple[list[list[int]], list[str]]:
    numbers = ClassNumbers(separator)
    for label in labels:
        numbers.add(label)
    rows, classes = numbers.numbered(names)
    assert rows.dtype == np.int8
    return rows.tolist(), classes


def test_lists_are_rows_of_indicators() -> None:
    expected = [[0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert several(["dog", "cat"], ["ant"], [], "cat") == (expected, ["ant", "cat", "dog"])
    assert several("cat", ("dog", "cat"), np.array(["ant"]))[0] == [[0, 1, 0], [0, 1, 1], [1, 0, 0]]
    assert several([3, 0], [1.0]) == ([[1, 0, 0, 1], [0, 1, 0, 0]], [])
    assert several(["person", "person"], [])[0] == [[1], [0]]


def test_text_with_a_separator() -> None:
    expected = [[0, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert several("dog | cat", "ant|", "", separator="|")[0] == expected
    assert several("1 3", "0", separator=" ") == ([[0, 1, 0, 1], [1, 0, 0, 0]], [])
    assert several("dog", "cat", separator="|")[0] == [[0, 1], [1, 0]]


def test_of_a_list_with_a_gap_nothing_is_known() -> None:
    for gap in (None, [None], ["cat", ""], ["-1"]):
        assert several(["cat"], gap)[0] == [[1], [-1]]
    assert find_unlabelled(np.array([[1, 0], [-1, -1], [0, 0]])).tolist() == [1]


def test_known_names_make_a_column_each() -> None:
    rows = [[0, 1, 0], [1, 1, 0]]
    assert several([1], [0, 1], names=["a", "b", "c"]) == (rows, ["a", "b", "c"])


def test_indicators_are_no_list_of_classes() -> None:
    with pytest.raises(LabelError, match=r"sample 2 has the label \[0, 1, 0\].*disk_filelist"):
        several([0, 1], [0, 1, 0])
