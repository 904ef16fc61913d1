"""Classes of another set in TRAIN's numbers, and answers that match any of an image's classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sslengine.contrib.other_sets import Known, any_match
from sslengine.data.manifest.classes import Classes
from sslengine.errors import DataError

NAMES = ("bird", "cat", "dog")


def known(*names: str) -> Known:
    return Known.of(Classes(names or NAMES))


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_a_part_of_the_classes_and_their_numbers() -> None:
    """As ImageNet-R, whose folders are TRAIN's; as ImageNet-V2, whose folders are numbers."""
    one, two = frozenset([1]), frozenset([2])
    assert known().of_names(["cat", "dog", "yak"], None) == [one, two, frozenset()]
    assert known().of_names(["2", "01", "3"], None) == [two, one, frozenset()]
    # TRAIN's own names are numbers, and not its places.
    assert known("1", "7").of_names(["7", "0", "001"], None) == [one, frozenset(), frozenset([0])]
    numbers = Known.of(Classes(numbers=frozenset([3, 5])))
    assert numbers.of_names(["5", "0"], None) == [frozenset([5]), frozenset()]


def test_a_table_of_classes(tmp_path: Path) -> None:
    """As ObjectNet, of whose classes some are several of TRAIN's, and others none."""
    table = written(tmp_path / "classes.json", {"pet": ["cat", 2], "hen": "bird", "yak": []})
    found = known().of_names(["hen", "ox", "pet", "yak"], table)
    assert found == [frozenset([0]), frozenset(), frozenset([1, 2]), frozenset()]
    with pytest.raises(DataError, match=r"'hen' is no class of the images. Did you mean 'her'\?"):
        known().of_names(["her"], written(table, {"hen": "bird"}))
    with pytest.raises(DataError, match=r"'cats' is no class of TRAIN. Did you mean 'cat'\?"):
        known().of_names(["pet"], written(table, {"pet": ["cats"]}))
    for bad in (["cat"], None):
        table.write_text("{" if bad is None else json.dumps(bad))
        with pytest.raises(DataError, match=r"classes.json: (expected names|cannot be read)"):
            known().of_names(["pet"], table)


def test_labels_of_images(tmp_path: Path) -> None:
    """As ImageNet-ReaL: a list in the order of the files' names, whatever their folders."""
    paths = ["b/val_1.jpg", "a/val_3.jpg", "a/val_2.jpg"]
    file = written(tmp_path / "real.json", [[0], [1, 2], []])
    wanted = [frozenset([0]), frozenset(), frozenset([1, 2])]
    assert known().of_images(file, paths) == wanted
    with pytest.raises(DataError, match="has 3 entries for 2 images"):
        known().of_images(file, paths[:2])
    written(file, {"val_1": 0, "a/val_2.jpg": ["cat", "dog"]})
    assert known().of_images(file, paths) == wanted
    with pytest.raises(DataError, match="has no image of these"):
        known().of_images(file, ["z.jpg"])


def test_any_of_them_is_right() -> None:
    """By hand; of one class each also what unequal classes hide."""
    shown = [frozenset([0]), frozenset([1, 2]), frozenset([1, 2]), frozenset([3])]
    assert any_match(torch.tensor([0, 2, 3, 1]), shown) == {"accuracy": 50}
    found = any_match(torch.tensor([0, 0, 0, 1]), [frozenset([0])] * 2 + [frozenset([1])] * 2)
    assert found["accuracy"] == found["balanced accuracy"] == 75
    assert found["macro F1"] == pytest.approx(100 * (4 / 5 + 2 / 3) / 2)
