"""VISSL's SVMs, against its protocol written with scikit-learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.model_selection import cross_val_score
from sklearn.svm import LinearSVC
from torch import Tensor

from sslengine.evaluate.options import CostOptions, LowShotOptions, SvmOptions
from sslengine.evaluate.svm import low_shot_svm, svm

OPTIONS = SvmOptions(costs=CostOptions([0.1, 1.0, 10.0]), max_iter=20_000)


def few(
    shots: list[int], draws: int, choose: str = "train", costs: list[float] | None = None
) -> SvmOptions:
    how = LowShotOptions(list(range(draws)), shots, choose)
    return replace(OPTIONS, low_shot=how, costs=CostOptions(costs or OPTIONS.costs.costs_list))


def noisy(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(seed)
    rows = (draw.random((count, 3)) < 0.4).astype(np.int8)
    mixing = np.random.default_rng(7).normal(size=(3, 8))
    features = rows @ mixing + 1.2 * draw.normal(size=(count, 8))
    return torch.from_numpy(features).float(), torch.from_numpy(rows)


(TRAIN, ROWS), (TEST, WANTED) = noisy(120, 0), noisy(150, 1)


def machine(cost: float) -> LinearSVC:
    return LinearSVC(C=cost, class_weight={1: 2, -1: 1}, dual=True, max_iter=20_000, random_state=0)


def unit(features: Tensor) -> np.ndarray:
    rows = features.double().numpy()
    return rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-5)


def voc(wanted: np.ndarray, scores: np.ndarray) -> float:
    """The area below the precision that is reached at each recall or later."""
    hits = wanted[np.argsort(-scores)] > 0
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return np.maximum.accumulate(precision[::-1])[::-1][hits].mean()


def test_each_class_has_its_cost() -> None:
    found = svm(TRAIN, ROWS, TEST, WANTED, OPTIONS)
    expected = []
    for each in range(3):
        signs = np.where(ROWS[:, each] > 0, 1, -1)
        cross = [
            cross_val_score(
                machine(cost), unit(TRAIN), signs, cv=3, scoring="average_precision"
            ).mean()
            for cost in OPTIONS.costs.all
        ]
        cost = OPTIONS.costs.all[int(np.argmax(cross))]
        assert found.details["costs"][each] == cost
        scores = machine(cost).fit(unit(TRAIN), signs).decision_function(unit(TEST))
        expected.append(voc(WANTED[:, each].numpy(), scores))
    assert found.metrics["mAP"] == pytest.approx(100 * np.mean(expected), rel=1e-9)
    assert found.notes == ("cost 10 is an end of those tried, 0.1 to 10",)
    assert 50 < found.metrics["mAP"] < 95


def test_unknown_indicators_are_left_out() -> None:
    rows = ROWS.clone()
    rows[:20, 0] = -1
    rest = svm(TRAIN[20:], ROWS[20:, :1], TEST, WANTED[:, :1], OPTIONS).metrics["mAP"]
    assert svm(TRAIN, rows[:, :1], TEST, WANTED[:, :1], OPTIONS).metrics["mAP"] == rest
    wanted = WANTED.clone()
    wanted[:30, 0] = -1
    some = svm(TRAIN, ROWS[:, :1], TEST[30:], WANTED[30:, :1], OPTIONS).metrics["mAP"]
    assert svm(TRAIN, ROWS[:, :1], TEST, wanted[:, :1], OPTIONS).metrics["mAP"] == some


def test_class_numbers_and_classes_with_few_images() -> None:
    labels, wanted = (each.long() @ torch.tensor([1, 2, 0]) for each in (ROWS, WANTED))
    labels[labels == 3] = 0
    labels[0] = 5  # a class of one image; 3 and 4 have none
    found = svm(TRAIN, labels, TEST, wanted, OPTIONS)
    assert found.notes == (
        "2 of 6 classes have no images of both kinds: left out",
        "1 classes have too few images to choose a cost: it is 1",
        "cost 10 is an end of those tried, 0.1 to 10",
    )
    assert found.details["costs"][5] == 1.0
    assert 35 < found.metrics["accuracy"] < 95
    assert "no class has both" in svm(TRAIN, 0 * labels, TEST, wanted).notes[0]
    assert "NaN" in svm(TRAIN * torch.nan, labels, TEST, wanted).notes[0]
    assert "none of the classes" in svm(TRAIN, ROWS, TEST, 0 * WANTED).notes[0]
    short = SvmOptions(costs=CostOptions([1000.0]), max_iter=2)
    assert "converged" in svm(TRAIN, ROWS, TEST, WANTED, short).notes[0]


def test_low_shots_on_the_test_set_as_published() -> None:
    found = low_shot_svm(TRAIN, ROWS, TEST, WANTED, few([2, 8], 2, "test"))
    assert "costs are chosen on the test set" in found.notes
    for k in (2, 8):
        table = np.zeros((2, 3))
        for seed in range(2):
            draw = torch.Generator().manual_seed(seed)
            drawn = []
            for symbol, count in ((1, k), (0, 2 * k)):
                for each in range(3):
                    there = (ROWS[:, each] == symbol).nonzero().flatten()
                    drawn.append(there[torch.randperm(len(there), generator=draw)[:count]])
            for place, cost in enumerate(OPTIONS.costs.all):
                aps = []
                for each in range(3):
                    some = torch.cat([drawn[each], drawn[3 + each]]).sort().values
                    signs = np.where(ROWS[some, each] > 0, 1, -1)
                    scores = (
                        machine(cost).fit(unit(TRAIN[some]), signs).decision_function(unit(TEST))
                    )
                    aps.append(voc(WANTED[:, each].numpy(), scores))
                table[seed, place] = 100 * np.mean(aps)
        best = table.mean(axis=0).argmax()
        assert found.metrics[f"k={k} mAP"] == pytest.approx(table[:, best].mean(), rel=1e-9)
        detail = found.details[f"k={k}"]
        assert (detail["min"], detail["max"]) == pytest.approx(
            (table[:, best].min(), table[:, best].max())
        )
        assert (detail["cost"], detail["chosen_on"]) == (OPTIONS.costs.all[best], "test")


def test_low_shots_without_the_test_set() -> None:
    """The chosen costs do not depend on the test set, nor the result of a cost on the choice."""
    options = few([4], 3)
    found = low_shot_svm(TRAIN, ROWS, TEST, WANTED, options)
    other = low_shot_svm(TRAIN, ROWS, TEST, 1 - WANTED, options)
    cost = found.details["k=4"]["cost"]
    assert other.details["k=4"]["cost"] == cost
    assert found.details["k=4"]["chosen_on"] == "train"
    single = few([4], 3, "test", [cost])
    alone = low_shot_svm(TRAIN, ROWS, TEST, WANTED, single)
    assert alone.metrics == found.metrics


def test_low_shots_of_class_numbers() -> None:
    labels, wanted = (each[:, 0].long() for each in (ROWS, WANTED))
    found = low_shot_svm(TRAIN, labels, TEST, wanted, few([1, 100], 2))
    assert set(found.metrics) == {"k=1 mAP", "k=100 mAP"}
    assert found.notes == (
        "k=1: cost 10 is an end of those tried, 0.1 to 10",
        "k=100: 2 of 2 classes have fewer images: all are used",
        "k=100: no images are left to choose the cost: it is 1",
    )
    whole = low_shot_svm(
        TRAIN, ROWS[:, :1], TEST, WANTED[:, :1], few([200], 1, costs=[1.0])
    )  # fmt: skip
    assert "fewer images" in whole.notes[0]
