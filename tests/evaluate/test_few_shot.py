"""Few labels: drawn shares, and draws of some images of each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from sslengine.evaluate.few_shot import (
    draw_of_each_class,
    few_labels,
    few_shot_knn,
    few_shot_logistic,
    shots_of_each_class,
)
from sslengine.evaluate.intervals import Spread
from sslengine.evaluate.linear import FIXED_PENALTY
from sslengine.evaluate.options import LinearProbeOptions
from sslengine.evaluate.store import Store


def noisy(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(seed)
    labels = 2 * draw.integers(4, size=count) + 1  # not all numbers are in use
    centres = np.random.default_rng(7).normal(size=(9, 10))
    return (
        torch.from_numpy(centres[labels] + 1.4 * draw.normal(size=(count, 10)) + 5),
        torch.from_numpy(labels),
    )


TRAIN, TEST = noisy(160, 0), noisy(400, 1)


def test_a_draw_has_some_of_each_class() -> None:
    rows = shots_of_each_class(TRAIN[1], 3, seed=0)
    assert TRAIN[1][rows].bincount().tolist() == [0, 3, 0, 3, 0, 3, 0, 3]
    assert rows.equal(shots_of_each_class(TRAIN[1], 3, seed=0))
    assert not rows.equal(shots_of_each_class(TRAIN[1], 3, seed=1))
    labels = torch.tensor([0, -1, 0, 1])
    assert shots_of_each_class(labels, 5, seed=0).tolist() == [0, 2, 3]


def test_intervals_are_students() -> None:
    values = [61.0, 64.5, 60.2, 66.0, 63.3]
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    found = Spread.over(values)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert np.isnan(Spread.over([3.0]).half)


def test_neighbours_among_the_drawn_images() -> None:
    found = few_shot_knn(*TRAIN, *TEST, shots=[1, 12], draws=2)
    assert list(found.metrics) == [
        "1 shots, k=1", "12 shots, k=1", "12 shots, k=10", "12 shots, k=12",
    ]  # fmt: skip
    for n, k in ((1, 1), (12, 1), (12, 12)):
        expected = []
        for seed in range(2):
            rows = shots_of_each_class(TRAIN[1], n, seed)
            judge = KNeighborsClassifier(
                k, metric="cosine", algorithm="brute",
                weights=lambda far: np.exp((1 - far) / 0.07),
            ).fit(TRAIN[0][rows], TRAIN[1][rows])  # fmt: skip
            expected.append(100 * judge.score(*TEST))
        name = f"{n} shots, k={k}"
        assert found.metrics[name] == pytest.approx(np.mean(expected))
        assert found.details["intervals"][name] == pytest.approx(Spread.over(expected).half)


def test_regressions_on_the_drawn_images(tmp_path: Path) -> None:
    """From a store; a large penalty is chosen where it is better."""
    store = Store.make(tmp_path / "train", {}, 160)
    for shard in store.shards():
        some = slice(shard.images.start, shard.images.stop)
        store.write(shard, {"flatten": TRAIN[0][some]}, TRAIN[1][some], torch.arange(160)[some])
    rows = store.layer("flatten")
    options = LinearProbeOptions(PENALTIES=[1e-4, 0.3])
    found = few_shot_logistic(rows, TRAIN[1], *TEST, shots=[2, 10], draws=2, options=options)
    scale = StandardScaler().fit(rows.tensor().double())
    chosen = found.details["penalties"]
    assert chosen["2 shots"] == [FIXED_PENALTY] * 2
    assert chosen["10 shots"] == [0.3, 0.3]
    for n in (2, 10):
        expected = []
        for seed, penalty in enumerate(chosen[f"{n} shots"]):
            drawn = shots_of_each_class(TRAIN[1], n, seed)
            judge = LogisticRegression(C=1 / (penalty * len(drawn)), tol=1e-8, max_iter=1000)
            judge.fit(scale.transform(TRAIN[0][drawn]), TRAIN[1][drawn])
            expected.append(100 * judge.score(scale.transform(TEST[0]), TEST[1]))
        assert found.metrics[f"{n} shots"] == pytest.approx(np.mean(expected), abs=0.3)
        assert 40 < np.mean(expected) < 99


def test_small_classes_and_one_class() -> None:
    labels = TRAIN[1].clone()
    labels[labels == 3] = -1
    labels[:1] = 3
    for judge in (few_shot_knn, few_shot_logistic):
        found = judge(TRAIN[0], labels, *TEST, shots=[1, 5], draws=2)
        assert found.notes == ("5 shots: 1 of 4 classes have fewer images, all of which are used",)
        assert found.metrics
        one = judge(TRAIN[0], torch.zeros_like(labels), *TEST)
        assert not one.metrics
        assert "not of two classes" in one.notes[0]
        same = judge(
            torch.ones(160, 10), TRAIN[1], torch.ones(400, 10), TEST[1], shots=[5], draws=2
        )
        assert all(0 <= value <= 40 for value in same.metrics.values())
        broken = judge(TRAIN[0] * torch.nan, TRAIN[1], *TEST)
        assert "NaN" in broken.notes[0]


# ---- A share of the labels: which images are drawn, and scikit-learn on these.


def test_each_class_keeps_its_share() -> None:
    labels = torch.tensor([0] * 100 + [1] * 40 + [2] * 3 + [-1] * 10)
    rows = draw_of_each_class(labels, 0.1, seed=0)
    assert torch.bincount(labels[rows]).tolist() == [10, 4, 1]
    assert torch.equal(rows, rows.sort().values)
    assert len(rows.unique()) == 15
    assert torch.equal(rows, draw_of_each_class(labels, 0.1, seed=0))
    assert not torch.equal(rows, draw_of_each_class(labels, 0.1, seed=1))


def test_as_scikit_learn_on_the_drawn_images() -> None:
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), [100, 60, 40])
    features = draw.normal(size=(200, 6)) + 1.2 * np.eye(3, 6)[labels]
    options = LinearProbeOptions(PENALTIES=[0.1])
    given = (torch.from_numpy(features), torch.from_numpy(labels))
    found = few_labels(*given, *given, shares=[0.1], draws=2, options=options)
    expected = []
    for seed in range(2):
        rows = draw_of_each_class(given[1], 0.1, seed).numpy()
        mean, deviation = features[rows].mean(axis=0), features[rows].std(axis=0)
        scaled = (features - mean) / deviation
        probe = LogisticRegression(C=1 / (0.1 * len(rows)), tol=1e-10, max_iter=5000)
        expected.append(100 * probe.fit(scaled[rows], labels[rows]).score(scaled, labels))
    assert found.metrics["10 %"] == pytest.approx(np.mean(expected))
    assert found.details["images"] == {"10 %": 20}
    assert found.details["penalties"] == {"10 %": [0.1, 0.1]}


def test_what_is_unusual_of_the_probes_is_a_note_of_the_share(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once for all draws, and no warning that could be of the probe on all labels."""
    features, labels = torch.randn(60, 4).double(), torch.arange(60) % 3
    options = LinearProbeOptions(PENALTIES=[1e-6], MAX_ITERATIONS=1)
    given = (features, labels, features, labels)
    found = few_labels(*given, shares=[0.02, 0.3], draws=2, options=options)
    slow = "it has not converged in 1 iterations (config.LINEAR_PROBE.MAX_ITERATIONS)"
    told = [note for note in found.notes if note.startswith("30 %")]
    assert told == [f"30 %: {slow}: its score may be too low"]
    (single,) = [note for note in found.notes if "none is held out" in note]
    assert single.startswith("2 %: ")
    assert caplog.records == []


def test_of_one_class_the_reason_and_no_number() -> None:
    features = torch.randn(8, 2)
    found = few_labels(features, torch.zeros(8).long(), features, torch.zeros(8).long())
    assert not found.metrics
    assert "not of two classes" in found.notes[0]
