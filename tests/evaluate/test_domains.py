"""Domains that are left out, and sets with other classes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sslengine.contrib.domains import FOLDS, leave_one_domain_out
from sslengine.contrib.other_sets import Known, any_match
from sslengine.data.manifest.classes import Classes
from sslengine.errors import DataError
from sslengine.evaluate.options import LinearProbeOptions

ONE = LinearProbeOptions(PENALTIES=[0.1], PENALTY_ON="sum")


def images(domains: int, count: int = 120) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Three classes, whose features each domain moves."""
    draw = torch.Generator().manual_seed(0)
    labels, places = torch.arange(count) % 3, torch.arange(count) // 3 % domains
    moved = torch.randn(domains, 4, generator=draw)[places]
    features = 1.2 * torch.eye(4)[labels] + moved + torch.randn(count, 4, generator=draw)
    return features, labels, [f"camera {place}" for place in places.tolist()]


def test_each_domain_is_left_out_once() -> None:
    features, labels, domains = images(4)
    found = leave_one_domain_out(*(features, labels, domains) * 2, ONE)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=10, tol=1e-8, max_iter=5000))
    answers = cross_val_predict(
        pipeline, features.double().numpy(), labels.numpy(), groups=domains, cv=LeaveOneGroupOut()
    )
    right, own = answers == labels.numpy(), np.array(domains)
    each = [100 * right[own == name].mean() for name in np.unique(own)]
    f1 = f1_score(labels, answers, average="macro")
    wanted = {
        "accuracy": 100 * right.mean(), "macro F1": 100 * f1,
        "mean of domains": np.mean(each), "worst domain": min(each),
    }  # fmt: skip
    assert found.metrics == pytest.approx(wanted)
    assert [of["accuracy"] for of in found.details["domains"].values()] == pytest.approx(each)
    assert {of["images"] for of in found.details["domains"].values()} == {30}
    assert "held-out" in found.details["chosen_on"]


def test_many_domains_are_left_out_together() -> None:
    features, labels, domains = images(40)
    found = leave_one_domain_out(*(features, labels, domains) * 2, ONE)
    assert len(found.details["penalties"]) == FOLDS
    assert len(found.details["domains"]) == 40


def test_a_domain_of_the_test_images_alone_and_a_single_one() -> None:
    features, labels, domains = images(2)
    elsewhere = ["elsewhere"] * len(labels)
    found = leave_one_domain_out(features, labels, domains, features, labels, elsewhere, ONE)
    assert found.metrics["accuracy"] == found.metrics["worst domain"] > 40
    none = leave_one_domain_out(*(features, labels, elsewhere) * 2, ONE)
    assert none.notes == ("Domains: all training images are of the domain 'elsewhere'.",)


# ---- Classes of another set in TRAIN's numbers, and answers that match any of an image's classes.


NAMES = ("bird", "cat", "dog")


def known(*names: str) -> Known:
    return Known.of(Classes(names or NAMES))


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_a_part_of_the_classes_and_their_numbers() -> None:
    """As ImageNet-R, whose folders are TRAIN's; as ImageNet-V2, whose folders are numbers."""
    one, two = frozenset([1]), frozenset([2])
    assert known().number_names(["cat", "dog", "yak"], None) == [one, two, frozenset()]
    assert known().number_names(["2", "01", "3"], None) == [two, one, frozenset()]
    # TRAIN's own names are numbers, and not its places.
    assert known("1", "7").number_names(["7", "0", "001"], None) == [
        one,
        frozenset(),
        frozenset([0]),
    ]
    numbers = Known.of(Classes(numbers=frozenset([3, 5])))
    assert numbers.number_names(["5", "0"], None) == [frozenset([5]), frozenset()]


def test_a_table_of_classes(tmp_path: Path) -> None:
    """As ObjectNet, of whose classes some are several of TRAIN's, and others none."""
    table = written(tmp_path / "classes.json", {"pet": ["cat", 2], "hen": "bird", "yak": []})
    found = known().number_names(["hen", "ox", "pet", "yak"], table)
    assert found == [frozenset([0]), frozenset(), frozenset([1, 2]), frozenset()]
    with pytest.raises(DataError, match=r"'hen' is no class of the images. Did you mean 'her'\?"):
        known().number_names(["her"], written(table, {"hen": "bird"}))
    with pytest.raises(DataError, match=r"'cats' is no class of TRAIN. Did you mean 'cat'\?"):
        known().number_names(["pet"], written(table, {"pet": ["cats"]}))
    for bad in (["cat"], None):
        table.write_text("{" if bad is None else json.dumps(bad))
        with pytest.raises(DataError, match=r"classes.json: (expected names|cannot be read)"):
            known().number_names(["pet"], table)


def test_labels_of_images(tmp_path: Path) -> None:
    """As ImageNet-ReaL: a list in the order of the files' names, whatever their folders."""
    paths = ["b/val_1.jpg", "a/val_3.jpg", "a/val_2.jpg"]
    file = written(tmp_path / "real.json", [[0], [1, 2], []])
    wanted = [frozenset([0]), frozenset(), frozenset([1, 2])]
    assert known().number_images(file, paths) == wanted
    with pytest.raises(DataError, match="has 3 entries for 2 images"):
        known().number_images(file, paths[:2])
    written(file, {"val_1": 0, "a/val_2.jpg": ["cat", "dog"]})
    assert known().number_images(file, paths) == wanted
    with pytest.raises(DataError, match="has no image of these"):
        known().number_images(file, ["z.jpg"])


def test_any_of_them_is_right() -> None:
    """By hand; of one class each also what unequal classes hide."""
    shown = [frozenset([0]), frozenset([1, 2]), frozenset([1, 2]), frozenset([3])]
    assert any_match(torch.tensor([0, 2, 3, 1]), shown) == {"accuracy": 50}
    found = any_match(torch.tensor([0, 0, 0, 1]), [frozenset([0])] * 2 + [frozenset([1])] * 2)
    assert found["accuracy"] == found["balanced accuracy"] == 75
    assert found["macro F1"] == pytest.approx(100 * (4 / 5 + 2 / 3) / 2)
