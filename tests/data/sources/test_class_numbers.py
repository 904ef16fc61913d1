from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sslengine.data.sources import class_numbers
from sslengine.data.sources.class_numbers import NO_CLASS, ClassNumbers, LabelError
from sslengine.errors import DataError


def numbered(*labels: Any) -> tuple[list[int], bytes]:
    numbers = ClassNumbers()
    for label in labels:
        numbers.add(label)
    arrays = numbers.arrays()
    assert arrays["labels"].dtype == np.int32
    return arrays["labels"].tolist(), arrays["classes"].tobytes()


@pytest.mark.parametrize("kind", [int, str, np.int64])
def test_whole_numbers_are_classes(kind: Any) -> None:
    assert numbered(kind(7), kind(0), kind(12), kind(7)) == ([7, 0, 12, 7], b"")


def test_names_in_their_order() -> None:
    assert numbered("dog", "ant", " dog ", "cat") == ([2, 0, 2, 1], b"antcatdog")


def test_one_that_is_no_number_makes_all_of_them_names() -> None:
    assert numbered("10", "9", "unknown")[0] == [0, 1, 2]
    assert numbered(1.5, 0)[0] == [1, 0]


def test_numbers_written_as_floats_are_numbers() -> None:
    """As a table has them in which there was a gap once."""
    assert numbered(*(f"{number}.0" for number in range(12))) == (list(range(12)), b"")
    assert numbered(3.0, 10.0, 2.0) == ([3, 10, 2], b"")
    assert numbered("10.5", "9.5", "-3") == ([2, 1, 0], b"-39.510.5")  # classes, by size


@pytest.mark.parametrize("gap", ["", " ", "nan", "NaN", float("nan"), "-1", -1, "-1.0", None])
def test_a_gap_is_no_class_and_leaves_the_others_what_they_are(gap: Any) -> None:
    assert numbered("3", gap, "11") == ([3, NO_CLASS, 11], b"")
    assert numbered("dog", gap, "cat") == ([1, NO_CLASS, 0], b"catdog")


def test_samples_without_a_label() -> None:
    assert numbered(None, 3, None)[0] == [NO_CLASS, 3, NO_CLASS]
    assert numbered(None)[0] == [NO_CLASS]
    assert numbered() == ([], b"")


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
    with pytest.raises(DataError, match=r"\[1\]"):
        class_numbers.all_known(np.array([[1, 0], [-1, -1], [0, 0]]), str)


def test_known_names_make_a_column_each() -> None:
    rows = [[0, 1, 0], [1, 1, 0]]
    assert several([1], [0, 1], names=["a", "b", "c"]) == (rows, ["a", "b", "c"])


def test_indicators_are_no_list_of_classes() -> None:
    with pytest.raises(LabelError, match=r"sample 2 has the label \[0, 1, 0\].*disk_filelist"):
        several([0, 1], [0, 1, 0])


def test_a_matrix_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_numbers, "LARGEST_MATRIX", 3)
    with pytest.raises(LabelError, match="2 samples of 2 classes"):
        several([0], [1])
