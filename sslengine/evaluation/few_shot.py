"""Classification with a few labelled images of each class: the mean over several draws.

few_shot_knn        nearest neighbours among the drawn images
few_shot_logistic   logistic regression on the drawn images. With CROSS_VALIDATED or more of each
                    class the penalty is chosen by cross-validation on them; with fewer it is
                    FIXED_PENALTY, on the mean of the losses. Features are standardised by all
                    training images, which needs no labels.

`details["intervals"]` has half the width of each 95 % confidence interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sslengine.evaluation.draws import (
    Interval,
    expect_classes,
    missing_shots,
    shots_of_each_class,
)
from sslengine.evaluation.features import Rows, expect_finite, rows_at
from sslengine.evaluation.knn import knn_curve
from sslengine.evaluation.linear import (
    FIXED_PENALTY,
    TOLERANCE,
    accuracy_of,
    answers_of,
    strength_of,
)
from sslengine.evaluation.logistic import Classifier
from sslengine.evaluation.options import LinearProbeOptions
from sslengine.evaluation.outcome import Outcome, note_choice, protocol
from sslengine.evaluation.penalty_path import fit_path
from sslengine.evaluation.samples import Samples, standardisation

SHOTS = (1, 2, 5, 10, 20)
DRAWS = 5
NEIGHBOURS = (1, 10, 20)
SIGMA = 0.07
CROSS_VALIDATED = FOLDS = 5


@protocol("Few-shot kNN")
def few_shot_knn(
    train: Rows,
    labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    shots: Sequence[int] = SHOTS,
    neighbours: Sequence[int] = NEIGHBOURS,
    draws: int = DRAWS,
    sigma: float = SIGMA,
) -> Outcome:
    """For each number of shots n, k = n and the smaller ones of `neighbours`."""
    counts = expect_classes(labels)
    found: dict[str, list[float]] = {}
    for n in shots:
        ks = sorted({n, *(k for k in neighbours if k < n)})
        for seed in range(draws):
            rows = shots_of_each_class(labels, n, seed)
            some = rows_at(train, rows), labels[rows]
            wanted = {k: min(k, len(rows)) for k in ks}
            curve = knn_curve(*some, test, test_labels, sorted({*wanted.values()}), sigma)
            for k, used in wanted.items():
                found.setdefault(f"{n} shots, k={k}", []).append(curve[used][0])
    return _outcome(found, missing_shots(counts, shots), draws)


@protocol("Few-shot logistic regression")
def few_shot_logistic(
    train: Rows,
    labels: Tensor,
    test: Rows,
    test_labels: Tensor,
    shots: Sequence[int] = SHOTS,
    draws: int = DRAWS,
    options: LinearProbeOptions | None = None,
) -> Outcome:
    counts = expect_classes(labels)
    for rows, split in ((train, "training"), (test, "test")):
        expect_finite(rows, split)
    options = options or LinearProbeOptions()
    scale = standardisation(train) if options.STANDARDISE else None
    numbers = labels[labels >= 0].unique()
    places = torch.searchsorted(numbers, labels)
    judged = Samples(test, test_labels, len(numbers), scale)
    found: dict[str, list[float]] = {}
    penalties: dict[str, list[float]] = {}
    notes = dict.fromkeys(missing_shots(counts, shots))
    for n in shots:
        for seed in range(draws):
            rows = shots_of_each_class(labels, n, seed)
            some = Samples(rows_at(train, rows), places[rows], len(numbers), scale)
            tried = [_penalty(some, options)] if n >= CROSS_VALIDATED else []
            (penalty,) = tried or [FIXED_PENALTY]
            best = _fitted(some, [penalty], options, fixed=not tried)[0]
            found.setdefault(f"{n} shots", []).append(accuracy_of(best, judged, numbers))
            penalties.setdefault(f"{n} shots", []).append(penalty)
            said = note_choice(tried, options.PENALTIES, answers_of(best, judged))
            notes |= dict.fromkeys(f"{n} shots: {each}" for each in said)
    outcome = _outcome(found, tuple(notes), draws)
    return replace(outcome, details={**outcome.details, "penalties": penalties})


def _penalty(samples: Samples, options: LinearProbeOptions) -> float:
    """With the best accuracy in cross-validation; of equally good ones the largest."""
    penalties = sorted(options.PENALTIES, reverse=True)
    right = torch.zeros(len(penalties), dtype=torch.float64)
    folds = _folds(samples.labels)
    for each in range(FOLDS):
        used, held = (_part(samples, folds == each, inside) for inside in (False, True))
        if not len(used) or not len(held):
            continue
        fitted = _fitted(used, penalties, options)
        right += torch.tensor([accuracy_of(one, held) * len(held) for one in fitted])
    return penalties[int(right.argmax())]


def _folds(labels: Tensor) -> Tensor:
    """The number of each row's fold; the rows of a class are spread evenly."""
    folds, start = torch.empty_like(labels), 0
    for each in labels.unique():
        rows = (labels == each).nonzero().flatten()
        # Where a class is smaller than the number of folds, the next one starts at another fold.
        folds[rows] = (start + torch.arange(len(rows), device=rows.device)) % FOLDS
        start += len(rows)
    return folds


def _part(samples: Samples, held: Tensor, inside: bool) -> Samples:
    rows = held if inside else ~held
    chosen: Tensor = samples.features[rows]  # type: ignore[index]
    return Samples(chosen, samples.labels[rows], samples.classes, samples.scale)


def _fitted(
    samples: Samples, penalties: Sequence[float], options: LinearProbeOptions, fixed: bool = False
) -> list[Classifier]:
    strengths = [each if fixed else strength_of(samples, each, options) for each in penalties]
    return fit_path(samples, strengths, TOLERANCE, options.MAX_ITERATIONS).classifiers


def _outcome(found: dict[str, list[float]], notes: tuple[str, ...], draws: int) -> Outcome:
    intervals = {name: Interval.of(values) for name, values in found.items()}
    return Outcome(
        {name: each.mean for name, each in intervals.items()},
        notes,
        {"draws": draws, "intervals": {name: each.half for name, each in intervals.items()}},
        seeds=tuple(range(draws)),
    )
