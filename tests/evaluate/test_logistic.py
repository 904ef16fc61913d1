"""Logistic regressions of one penalty and of a path of them, beside scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from sslengine.evaluate import logistic
from sslengine.evaluate.logistic import (
    CLASSIFIERS,
    Classifier,
    Samples,
    count_at_once,
    fit,
    fit_path,
    minimise,
    standardisation,
)
from sslengine.evaluate.store import Store

COUNT, WIDTH, CLASSES = 2000, 64, 10
DRAW = torch.Generator().manual_seed(0)
LABELS = torch.randint(CLASSES, (COUNT,), generator=DRAW)
FEATURES = 0.5 * torch.randn(CLASSES, WIDTH, generator=DRAW)[LABELS]
FEATURES = (FEATURES + torch.randn(COUNT, WIDTH, generator=DRAW)).double()
PENALTIES = [1.0, 0.1, 0.01, 1e-3]
EXACT: Any = {"tolerance": 1e-9, "max_iterations": 5000}


def samples(features: Any = FEATURES) -> Samples:
    return Samples(features, LABELS, CLASSES, None)


def of_scikit_learn(penalty: float) -> Any:
    judge = LogisticRegression(C=1 / (penalty * COUNT), tol=1e-9, max_iter=5000)
    return judge.fit(FEATURES.numpy(), LABELS.numpy())


def is_scikit_learns(classifier: Classifier, penalty: float) -> None:
    judge = of_scikit_learn(penalty)
    wanted = Classifier(torch.from_numpy(judge.coef_.T), torch.from_numpy(judge.intercept_))
    same(classifier, wanted, 1e-5)
    guessed = classifier.scores(FEATURES).argmax(dim=1)
    assert guessed.tolist() == judge.predict(FEATURES.numpy()).tolist()


def same(one: Classifier, other: Classifier, share: float = 1e-6) -> None:
    assert float((one.weight - other.weight).norm() / other.weight.norm()) < share
    # A number that is added to all biases changes nothing.
    biases = (each.bias - each.bias.mean() for each in (one, other))
    torch.testing.assert_close(*biases, rtol=0, atol=100 * share)


def test_several_penalties_count_at_once_are_those_of_scikit_learn() -> None:
    found = fit(samples(), PENALTIES, **EXACT)
    assert found.converged == [True] * 4
    for penalty, classifier in zip(PENALTIES, found.classifiers):
        is_scikit_learns(classifier, penalty)


@pytest.mark.parametrize("tolerance", [1e-5, 2e-7])
def test_single_precision_first_is_as_exact(
    tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 1e-5 one evaluation in float64 confirms it."""
    exact = fit(samples(), PENALTIES, tolerance=tolerance)
    evaluated: dict[torch.dtype, int] = {}

    def evaluate(of: Samples, *others: Any) -> Any:
        evaluated[of.dtype] = evaluated.get(of.dtype, 0) + 1
        return real(of, *others)

    real = logistic._evaluate
    monkeypatch.setattr(logistic, "_evaluate", evaluate)
    monkeypatch.setattr(logistic, "LARGE", 0)
    found = fit(samples(), PENALTIES, tolerance=tolerance)
    assert found.converged == [True] * 4
    for one, other in zip(found.classifiers, exact.classifiers):
        same(one, other, 1000 * tolerance)
    if tolerance == 1e-5:
        assert evaluated[torch.float64] == 1 < evaluated[torch.float32]


def test_large_numbers_are_rounded_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "LARGE", 0)
    assert logistic._tolerance_in_single(samples(), 1e-5) == 0.9e-5
    assert logistic._tolerance_in_single(samples(50 + FEATURES), 1e-5) == pytest.approx(
        5e-5, rel=0.1
    )
    assert logistic._tolerance_in_single(samples(1000 + FEATURES), 1e-5) == 0


def test_rows_of_a_store_in_pieces_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read again for each evaluation, in single precision."""
    store = Store.make(tmp_path, {}, COUNT)
    for shard in store.missing():
        rows = torch.tensor(shard.images)
        store.write(shard, {"f": FEATURES[rows].view(-1, 8, 8)}, LABELS[rows], rows)
    whole = fit(samples(FEATURES.float()), PENALTIES, **EXACT)
    monkeypatch.setattr(logistic, "KEPT", 0)
    monkeypatch.setattr(logistic, "LOGITS", 300 * 4 * CLASSES)
    pieces = fit(samples(store.layer("f")), PENALTIES, **EXACT)
    for one, other in zip(whole.classifiers, pieces.classifiers):
        same(one, other)


def test_a_problem_too_many_iterations_long_is_told() -> None:
    found = fit(samples(), [1.0, 1e-7], tolerance=1e-5, max_iterations=8)
    assert found.converged == [True, False]
    assert found.iterations == 8


def test_standardisation_is_scikit_learns() -> None:
    features = torch.cat([FEATURES * 100 + 7, torch.full((COUNT, 1), 0.3)], dim=1)
    mean, deviation = standardisation(features, rows=301)
    scale: Any = StandardScaler().fit(features.numpy())
    np.testing.assert_allclose(mean, scale.mean_, rtol=1e-12)
    np.testing.assert_allclose(deviation, scale.scale_, rtol=1e-9)


def test_quadratics_of_unlike_shape() -> None:
    """The minimum of x A x / 2 - b x is A^-1 b; one problem is a thousand times as long."""
    draw = torch.Generator().manual_seed(1)
    spectra = torch.stack([torch.logspace(0, power, 12).double() for power in (0, 1, 3)])
    turned, _ = torch.linalg.qr(torch.randn(12, 12, generator=draw).double())
    matrices = turned @ spectra.diag_embed() @ turned.T
    wanted = torch.randn(3, 12, generator=draw).double()
    constant = torch.einsum("pij,pj->pi", matrices, wanted)

    def evaluate(points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        product = torch.einsum("pij,pj->pi", matrices[which], points)
        value = (points * (product / 2 - constant[which])).sum(dim=1)
        return value, product - constant[which]

    found = minimise(evaluate, torch.zeros(3, 12).double(), 1e-9, 300)
    assert found.converged.all()
    torch.testing.assert_close(found.points, wanted, rtol=1e-7, atol=1e-7)
    first = minimise(evaluate, torch.zeros(1, 12).double(), 1e-9, 300)
    assert first.iterations < found.iterations


# ---- Regressions of many penalties: those of scikit-learn, from fewer evaluations, in bounded
# memory.


# DINOv2's, for 2000 images.
PATH = (10 ** torch.linspace(6, -5, 45).double() / 2000).tolist()


def test_all_are_those_of_scikit_learn() -> None:
    """In any order, at any distance, and twice the same."""
    penalties = [0.01, 1.0, 1e-3, 0.1, 0.011, 0.5, 0.01, 0.0101]
    found = fit_path(samples(), penalties, **EXACT)
    assert found.converged == [True] * 8
    for penalty, classifier in zip(penalties, found.classifiers):
        is_scikit_learns(classifier, penalty)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of penalties of each evaluation."""
    evaluated: list[int] = []

    def evaluate(of: Samples, points: Any, *others: Any) -> Any:
        evaluated.append(len(points))
        return real(of, points, *others)

    real = logistic._evaluate
    monkeypatch.setattr(logistic, "_evaluate", evaluate)
    return evaluated


def test_45_penalties_need_few_of_the_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those of fits from zero; and 30 penalties start at once."""
    evaluated = counted(monkeypatch)
    some = Samples(FEATURES[:500], LABELS[:500], CLASSES, None, torch.float32)
    alone = fit(some, PATH, tolerance=1e-5)
    from_zero = sum(evaluated)
    evaluated.clear()
    found = fit_path(some, PATH, tolerance=1e-5)
    assert all(found.converged)
    assert all(alone.converged)
    assert sum(evaluated) < 0.4 * from_zero
    assert 30 in evaluated


def test_few_count_at_once_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    many = fit_path(samples(), PATH[:20:4], **EXACT)
    evaluated = counted(monkeypatch)
    monkeypatch.setattr(logistic, "STATE", 1)
    assert count_at_once(samples()) == 1
    found = fit_path(samples(), PATH[:20:4], **EXACT)
    assert max(evaluated) == 1
    for one, other in zip(found.classifiers, many.classifiers):
        same(one, other, 1e-4)


def peak(work: Callable[[], Any]) -> int:
    """Bytes of tensors that were there at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as made:
        work()
    most = now = 0
    for event in made.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples, STATE, what is found, and some pieces: of 60 classes and 300 columns, 2 at
    once."""
    classes, width, penalties = 60, 300, PATH[10:16]
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(300, width, generator=draw)
    some = Samples(features, torch.arange(300) % classes, classes, None, dtype)
    each = (width + 1) * (classes * CLASSIFIERS + width + 1) * 8
    monkeypatch.setattr(logistic, "STATE", 2 * each)
    assert count_at_once(some) == 2
    known = len(penalties) * (width + 1) * classes * dtype.itemsize
    pieces = 8 * 300 * 2 * classes * dtype.itemsize
    moments = 5 * (width + 1) ** 2 * 8
    used = peak(lambda: fit_path(some, penalties, tolerance=1e-7))
    allowed = features.numel() * dtype.itemsize + 2 * each + known + pieces + moments
    assert 0.6 * allowed < used < allowed


def test_the_best_of_all_penalties_is_a_fit_of_its_own() -> None:
    """In single precision the path has the accuracy of the exact fit."""
    single = Samples(FEATURES, LABELS, CLASSES, None, torch.float32)
    for path, penalty in zip(
        fit_path(single, PATH[15:24:2], 1e-5).classifiers,
        PATH[15::2],
    ):
        (exact,) = fit(samples(), [penalty], tolerance=1e-7).classifiers
        same = path.scores(FEATURES).argmax(1) == exact.scores(FEATURES).argmax(1)
        assert same.double().mean() > 0.998
