"""Classification with a few labelled images of each class: the mean over several draws.

few_shot_knn        nearest neighbours among the drawn images
few_shot_logistic   logistic regression on the drawn images. With CROSS_VALIDATED or more of each
                    class the penalty is chosen by cross-validation on them; with fewer it is
                    FIXED_PENALTY, on the mean of the losses. Features are standardised by all
                    training images, which needs no labels.
few_labels          labels of 1 % and 10 % of the training images, as SimCLR and MSN report it:
                    logistic regression, standardised by the drawn images; the penalty is chosen on
                    a part of these. A class keeps its share of the images, and one at the least.
                    Which are drawn depends on the labels and the seed alone.

`details["intervals"]` has half the width of each 95 % confidence interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sslengine.data.manifest.subset import draw_of_each_class
from sslengine.errors import DataError
from sslengine.evaluate.features import Rows, expect_finite, expect_one_class_each, rows_at
from sslengine.evaluate.intervals import Spread
from sslengine.evaluate.knn import knn_curve
from sslengine.evaluate.linear import (
    FIXED_PENALTY,
    TOLERANCE,
    count_answers,
    linear_probe,
    measure_accuracies,
    scale_penalty,
)
from sslengine.evaluate.logistic import Classifier, Samples, fit_path, standardisation
from sslengine.evaluate.options import LinearProbeOptions
from sslengine.evaluate.outcome import Outcome, note_choice, protocol

SHOTS = (1, 2, 5, 10, 20)
DRAWS = 5
NEIGHBOURS = (1, 10, 20)
SIGMA = 0.07
CROSS_VALIDATED = FOLDS = 5


@protocol("Few-shot kNN")
def few_shot_knn(
    train: Rows,
    labels: Tensor,
    test: Rows,
    test_labels: Tensor,
    shots: Sequence[int] = SHOTS,
    draws: int = DRAWS,
) -> Outcome:
    """Score each number of shots n: k = n and the smaller ones of NEIGHBOURS."""
    counts = expect_classes(labels)
    found: dict[str, list[float]] = {}
    for n in shots:
        ks = sorted({n, *(k for k in NEIGHBOURS if k < n)})
        for seed in range(draws):
            rows = shots_of_each_class(labels, n, seed)
            some = rows_at(train, rows), labels[rows]
            wanted = {k: min(k, len(rows)) for k in ks}
            curve = knn_curve(*some, test, test_labels, sorted({*wanted.values()}), SIGMA)
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
            found.setdefault(f"{n} shots", []).extend(measure_accuracies([best], judged, numbers))
            penalties.setdefault(f"{n} shots", []).append(penalty)
            said = note_choice(tried, options.PENALTIES, count_answers(best, judged))
            notes |= dict.fromkeys(f"{n} shots: {each}" for each in said)
    outcome = _outcome(found, tuple(notes), draws)
    return replace(outcome, details={**outcome.details, "penalties": penalties})


def _penalty(samples: Samples, options: LinearProbeOptions) -> float:
    """Choose by accuracy in cross-validation; of equally good ones the largest."""
    penalties = sorted(options.PENALTIES, reverse=True)
    right = torch.zeros(len(penalties), dtype=torch.float64)
    folds = _folds(samples.labels)
    for each in range(FOLDS):
        used, held = (samples.choose((folds.eq(each) == inside).nonzero().flatten())
                      for inside in (False, True))  # fmt: skip
        if not len(used) or not len(held):
            continue
        fitted = _fitted(used, penalties, options)
        right += torch.tensor([one * len(held) for one in measure_accuracies(fitted, held)])
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


def _fitted(
    samples: Samples, penalties: Sequence[float], options: LinearProbeOptions, fixed: bool = False
) -> list[Classifier]:
    strengths = [each if fixed else scale_penalty(samples, each, options) for each in penalties]
    return fit_path(samples, strengths, TOLERANCE, options.MAX_ITERATIONS).classifiers


def _outcome(found: dict[str, list[float]], notes: tuple[str, ...], draws: int) -> Outcome:
    intervals = {name: Spread.over(values) for name, values in found.items()}
    return Outcome(
        {name: each.mean for name, each in intervals.items()},
        notes,
        {"draws": draws, "intervals": {name: each.half for name, each in intervals.items()}},
        seeds=tuple(range(draws)),
    )


SHARES = (0.01, 0.1)
DRAWS = 3


@protocol("Few labels")
def few_labels(
    train: Rows,
    labels: Tensor,
    test: Rows,
    test_labels: Tensor,
    shares: Sequence[float] = SHARES,
    draws: int = DRAWS,
    options: LinearProbeOptions | None = None,
    groups: Tensor | None = None,
) -> Outcome:
    counts = expect_classes(labels)
    intervals: dict[str, Spread] = {}
    details: dict[str, Any] = {"draws": draws, "images": {}, "penalties": {}, "chosen_on": {}}
    notes = []
    for share in shares:
        found, name = [], name_of(share)
        for seed in range(draws):
            rows = draw_of_each_class(labels, share, seed)
            some = rows_at(train, rows), labels[rows.to(labels.device)]
            of_some = None if groups is None else groups[rows.to(groups.device)]
            probe = linear_probe(*some, test, test_labels, options, groups=of_some)
            found.append(probe)
        intervals[name] = Spread.over([each.test_accuracy for each in found])
        details["images"][name] = len(rows)
        details["penalties"][name] = [each.penalty for each in found]
        details["chosen_on"][name] = found[0].chosen_on
        said = dict.fromkeys(text for each in found for text in each.notes)
        notes += [f"{name}: {text}" for text in said]
        if raised := int((share * counts < 0.5).sum()):
            notes.append(
                f"{name}: {raised} of {len(counts)} classes have so few images that the share is "
                f"raised to one image"
            )
    details["intervals"] = {name: each.half for name, each in intervals.items()}
    metrics = {name: each.mean for name, each in intervals.items()}
    return Outcome(metrics, tuple(notes), details, seeds=tuple(range(draws)))


def name_of(share: float) -> str:
    return f"{100 * share:g} %"


def shots_of_each_class(labels: Tensor, shots: int, seed: int) -> Tensor:
    """The numbers of `shots` images of each class, or of all where there are fewer; ascending.

    The same images as in DINOv2's few-shot kNN. Images of label -1 are not drawn.
    """
    draw = torch.Generator().manual_seed(seed)
    labels = labels.cpu()
    some = []
    for each in labels[labels >= 0].unique():
        rows = (labels == each).nonzero().flatten()
        some.append(rows[torch.randperm(len(rows), generator=draw)[:shots]])
    return torch.cat(some).sort().values


def expect_classes(labels: Tensor) -> Tensor:
    """Count the images of each class; DataError if there are not two classes."""
    expect_one_class_each(labels)
    counts: Tensor = labels[labels >= 0].unique(return_counts=True)[1]
    if len(counts) < 2:
        raise DataError(f"the {len(labels)} training labels are not of two classes or more.")
    return counts


def missing_shots(counts: Tensor, shots: Sequence[int]) -> tuple[str, ...]:
    """Notes on the classes that have fewer images."""
    few = {n: int((counts < n).sum()) for n in shots}
    return tuple(
        f"{n} shots: {some} of {len(counts)} classes have fewer images, all of which are used"
        for n, some in few.items()
        if some
    )
