"""Regressions of many penalties: those of scikit-learn, from fewer evaluations, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from sslengine.evaluation import logistic, penalty_path
from sslengine.evaluation.logistic import fit
from sslengine.evaluation.penalty_path import CLASSIFIERS, at_once, fit_path
from sslengine.evaluation.samples import Samples
from tests.evaluation.test_logistic import (
    CLASSES,
    EXACT,
    FEATURES,
    LABELS,
    is_scikit_learns,
    same,
    samples,
)

# DINOv2's, for 2000 images.
PENALTIES = (10 ** torch.linspace(6, -5, 45).double() / 2000).tolist()


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
    alone = fit(some, PENALTIES, tolerance=1e-5)
    from_zero = sum(evaluated)
    evaluated.clear()
    found = fit_path(some, PENALTIES, tolerance=1e-5)
    assert all(found.converged)
    assert all(alone.converged)
    assert sum(evaluated) < 0.4 * from_zero
    assert 30 in evaluated


def test_few_at_once_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    many = fit_path(samples(), PENALTIES[:20:4], **EXACT)
    evaluated = counted(monkeypatch)
    monkeypatch.setattr(penalty_path, "STATE", 1)
    assert at_once(samples()) == 1
    found = fit_path(samples(), PENALTIES[:20:4], **EXACT)
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
    classes, width, penalties = 60, 300, PENALTIES[10:16]
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(300, width, generator=draw)
    some = Samples(features, torch.arange(300) % classes, classes, None, dtype)
    each = (width + 1) * (classes * CLASSIFIERS + width + 1) * 8
    monkeypatch.setattr(penalty_path, "STATE", 2 * each)
    assert at_once(some) == 2
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
        fit_path(single, PENALTIES[15:24:2], 1e-5).classifiers, PENALTIES[15::2]
    ):
        (exact,) = fit(samples(), [penalty], tolerance=1e-7).classifiers
        same = path.scores(FEATURES).argmax(1) == exact.scores(FEATURES).argmax(1)
        assert same.double().mean() > 0.998
