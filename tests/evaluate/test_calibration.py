"""What stands beside a score: calibration, classes, intervals, notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]
from sklearn import metrics
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from sslengine.contrib.domains import leave_one_domain_out
from sslengine.contrib.segmentation import segmentation
from sslengine.engines.on_images import out_of_set
from sslengine.engines.scoring import Asked
from sslengine.evaluate import intervals
from sslengine.evaluate.answers import PerClass, calibrate_probe, calibration
from sslengine.evaluate.dense import dense
from sslengine.evaluate.few_shot import few_shot_logistic
from sslengine.evaluate.intervals import bootstrap, wilson
from sslengine.evaluate.linear import linear_probe
from sslengine.evaluate.options import (
    EvaluateOptions,
    LinearProbeOptions,
    NearestNeighborOptions,
    SegmentationOptions,
    SvmOptions,
)


def test_the_error_of_four_samples_by_hand() -> None:
    chances = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.45, 0.55]])
    labels = torch.tensor([0, 1, 1, 1])
    found = calibration(chances.log(), labels, bins=10)
    # Bins of 0.9 (half of them right), 0.8 (right), 0.55 (right).
    expected = (2 * abs(0.5 - 0.9) + abs(1 - 0.8) + abs(1 - 0.55)) / 4
    assert found.metrics["ECE"] == pytest.approx(100 * expected, rel=1e-6)
    assert found.metrics["accuracy"] == 75
    assert found.metrics["confidence"] == pytest.approx(100 * (0.9 + 0.9 + 0.8 + 0.55) / 4)
    assert [row[0] for row in found.details["bins"]] == [1, 1, 2]


def test_what_cannot_be_calibrated() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 30.0]])
    assert calibration(logits, torch.tensor([-1, 1])).metrics["ECE"] == pytest.approx(0, abs=1e-9)
    for bad in (logits * torch.inf, logits[:0]):
        found = calibration(bad, torch.ones(len(bad)))
        assert not found.metrics
        assert "finite logits" in found.notes[0]


def test_another_set_is_farther() -> None:
    draw = torch.Generator().manual_seed(0)
    train, inside, outside = torch.randn(3, 120, 8, generator=draw)
    train, inside, outside = train + 1, inside + 1, outside + 0.4
    nearest = NearestNeighbors(n_neighbors=50, metric="cosine").fit(train)
    far = [nearest.kneighbors(rows)[0][:, -1] for rows in (inside, outside)]
    expected = roc_auc_score(np.repeat([0, 1], 120), np.concatenate(far))
    found = out_of_set(train, inside, outside)
    assert found.metrics["AUROC"] == pytest.approx(100 * expected, abs=0.01)
    assert 60 < found.metrics["AUROC"] < 95
    assert not found.notes


def test_few_equal_and_broken_features() -> None:
    some = torch.ones(6, 4)
    found = out_of_set(some, some, some)
    assert found.metrics["AUROC"] == 50
    assert found.notes == ("k=50: there are only 6 training images; the farthest of them counts",)
    assert "other features are NaN" in out_of_set(some, some, some * torch.nan).notes[0]
    assert "no test features" in out_of_set(some, some[:0], some).notes[0]


def test_of_the_linear_probe_on_test_images() -> None:
    """With a test class that the probe does not know, which is never right."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    features = torch.eye(3)[labels] + 0.7 * torch.randn(90, 3, generator=draw)
    wanted = torch.where(torch.arange(90) < 9, 7, labels)
    options = LinearProbeOptions(PENALTIES=[0.1])
    fitted = linear_probe(features, labels, features, wanted, options)
    found = calibrate_probe(fitted, features, wanted)
    scaled = StandardScaler().fit_transform(features.double().numpy())
    probe = LogisticRegression(C=1 / (0.1 * 90), tol=1e-10, max_iter=5000)
    chances = probe.fit(scaled, labels.numpy()).predict_proba(scaled)
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == wanted.numpy()
    bins = np.digitize(confidence, np.linspace(0, 1, 16))
    error = sum(
        abs(right[bins == each].mean() - confidence[bins == each].mean()) * (bins == each).mean()
        for each in np.unique(bins)
    )
    assert found.metrics["ECE"] == pytest.approx(100 * error, rel=1e-3)
    assert found.metrics["accuracy"] == pytest.approx(100 * right.mean())
    assert "training images" in found.details["chosen_on"]


# ---- Answers class by class, against scikit-learn and by hand.


def test_the_means_are_those_of_scikit_learn() -> None:
    """A class without images (4) and one that is never answered (3)."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (400,), generator=draw) ** 2 // 3
    answers = torch.where(torch.rand(400, generator=draw) < 0.6, labels, 4 * (labels == 0))
    answers[answers == 3] = 1
    found = PerClass.count(answers, labels).metrics
    recalls = metrics.recall_score(labels, answers, average=None, labels=labels.unique())
    wanted = {
        "accuracy": metrics.accuracy_score(labels, answers),
        "balanced accuracy": recalls.mean(),
        "macro F1": metrics.f1_score(labels, answers, average="macro", zero_division=0),
        "worst class": recalls.min(),
    }
    assert found == pytest.approx({name: 100 * each for name, each in wanted.items()}, rel=1e-12)


# ---- Intervals against scipy and a bootstrap that is written out.


@pytest.mark.parametrize(("right", "count"), [(0, 3), (3, 3), (17, 40), (1660, 2000)])
def test_of_an_accuracy(right: int, count: int) -> None:
    found = wilson(100 * right / count, count)
    tested = stats.binomtest(right, count).proportion_ci(0.95, "wilson")
    assert found == pytest.approx([100 * tested.low, 100 * tested.high], abs=1e-4)
    if count > 1000:  # as resampled images
        drawn = np.random.default_rng(0).binomial(count, right / count, 20_000) / count
        assert found == pytest.approx(100 * np.percentile(drawn, [2.5, 97.5]), abs=0.2)


def test_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=400))
    found = bootstrap(lambda some: float(values[some].mean()), values)
    wanted = stats.t.interval(0.95, 399, values.mean(), values.std() / 20)
    assert found == pytest.approx(wanted, abs=0.02)
    assert bootstrap(lambda some: float("nan"), values) == []
    monkeypatch.setattr(intervals, "SORTED", 1000)
    assert bootstrap(lambda some: 1.0, values) == []


# ---- Every linear protocol says that its penalty is an end of the grid, and that its answer is
# constant.


LABELS = torch.arange(90) % 3
ROWS = torch.eye(3, dtype=torch.int8)[LABELS]
SAME = torch.ones(90, 4)
TOLD = SAME + torch.eye(3, 4)[LABELS] + 0.01 * torch.randn(90, 4, generator=torch.Generator().manual_seed(0))  # fmt: skip
PROBE = LinearProbeOptions(PENALTIES=[1.0, 0.1])  # each of two is an end
MACHINES = SvmOptions()
MACHINES.costs.costs_list = [0.1, 1.0]
MACHINES.low_shot.k_values = [5]
ASKED = Asked(EvaluateOptions(), NearestNeighborOptions(), PROBE, MACHINES)
MASKS = LABELS.view(10, 3, 3).repeat_interleave(2, 1).repeat_interleave(2, 2)
Notes = Callable[[torch.Tensor], tuple[str, ...]]


def _protocol(name: str) -> Notes:
    def notes(features: torch.Tensor) -> tuple[str, ...]:
        sets = features, LABELS, features, LABELS
        probe = linear_probe(*sets, PROBE)
        return ASKED.protocols(sets, probe)[name]().notes

    return notes


def _maps(features: torch.Tensor) -> Any:
    return features.view(10, 3, 3, 4).permute(0, 3, 1, 2).contiguous()


NAMES = ("few_labels", "svm", "low_shot_svm", "calibration", "per_class")
NOTES: dict[str, Notes] = {
    **{name: _protocol(name) for name in NAMES},
    "few_shot_linear": lambda rows: (
        few_shot_logistic(*(rows, LABELS) * 2, shots=[5], draws=1, options=PROBE).notes
    ),
    "linear": lambda rows: linear_probe(rows, LABELS, rows, LABELS, PROBE).notes,
    "linear_many": lambda rows: linear_probe(rows, ROWS, rows, ROWS, PROBE).notes,
    "domains": lambda rows: (
        leave_one_domain_out(*(rows, LABELS, [*range(2)] * 45) * 2, PROBE).notes
    ),
    "dense": lambda rows: dense(_maps(rows), MASKS, _maps(rows), MASKS).notes,
}


@pytest.mark.parametrize("name", NOTES)
def test_an_end_and_a_constant_answer_are_notes_of_each(name: str) -> None:
    """Features that tell nothing, then those that tell all."""
    notes = " ".join(NOTES[name](SAME))
    assert "is an end of those tried" in notes
    assert "answers are the same" in notes
    assert "answers are the same" not in " ".join(NOTES[name](TOLD))


def test_a_trained_head_has_no_grid_and_may_be_constant() -> None:
    options = SegmentationOptions(ITERATIONS=20, BATCH=4, LR=0.1)
    for rows, constant in ((SAME, True), (TOLD, False)):
        found = segmentation(_maps(rows), MASKS, _maps(rows), [*MASKS], options)
        assert any("answers are the same" in each for each in found.notes) == constant
        assert found.metrics["constant accuracy"] == pytest.approx(100 / 3)


@pytest.mark.parametrize(("side", "coarse"), [(3, True), (5, False)])
def test_a_coarse_map_is_a_note(side: int, coarse: bool) -> None:
    maps = torch.randn(6, 4, side, side, generator=torch.Generator().manual_seed(0))
    masks = (maps[:, 0] > 0).long()
    options = SegmentationOptions(ITERATIONS=2)
    for found in (dense(maps, masks, maps, masks), segmentation(maps, masks, maps, [*masks], options)):  # fmt: skip
        assert any("too coarse" in each for each in found.notes) == coarse
