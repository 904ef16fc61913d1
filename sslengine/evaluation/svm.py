"""VISSL's linear SVMs on frozen features: one against all others for each class.

    1/2 |w|^2  +  cost * sum over the images of weight * max(0, 1 - y (w x + b))^2

with weight 2 for images of the class and 1 for others, on features x / |x|. The cost of each class
is the one with the best average precision in cross-validation on the training set; the result is
the mean of the classes' average precision on the test set, by VOC's interpolation.

Images whose indicator is unknown (-1) are left out for that class. VISSL's trainer takes them as
images that do not show the class.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import LinearSVC
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluation.features import Rows, blocks, check_features
from sslengine.evaluation.outcome import Outcome, protocol
from sslengine.meters.average_precision import average_precision

Features = NDArray[np.float64]
Signs = NDArray[np.int8]  # 1: shows the class, -1: does not
Result = TypeVar("Result")

# Of a class with too few images to choose by cross-validation.
FIXED_COST = 1.0
MOST_THREADS = 8  # each has a copy of the features


@dataclass(frozen=True)
class Svm:
    """VISSL's config.SVM."""

    costs: Sequence[float] = (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0)
    normalize: bool = True
    dual: bool = True
    max_iter: int = 2000
    cross_val_folds: int = 3

    def matrix(self, features: Rows) -> Features:
        whole = torch.cat([each.double() for each in blocks(features)]).cpu()
        if self.normalize:
            whole = whole / (whole.norm(dim=1, keepdim=True) + 1e-5)
        found: Features = whole.numpy()
        return found

    def fit(self, features: Features, signs: Signs, cost: float) -> Any:
        """The solver draws images in a random order: the seed makes it the same each time."""
        machine: Any = LinearSVC(  # type: ignore[no-untyped-call]
            C=cost, class_weight={1: 2, -1: 1}, loss="squared_hinge", penalty="l2", tol=1e-4,
            intercept_scaling=1.0, dual=self.dual, max_iter=self.max_iter, random_state=0,
        )  # fmt: skip
        return machine.fit(features, signs)


@protocol("SVM")
def svm(
    train: Rows, labels: Tensor, test: Rows, test_labels: Tensor, options: Svm | None = None
) -> Outcome:
    """labels: class numbers, or rows of indicators 1, 0, and -1 for unknown."""
    options = options or Svm()
    rows, wanted = indicators(labels, test_labels)
    features, judged = options.matrix(train), options.matrix(test)
    check_features("SVM", torch.from_numpy(features), labels, torch.from_numpy(judged))
    classes = both_kinds(rows)
    expect_shown(wanted[:, classes])
    found = in_threads(
        lambda each: _of_class(features, rows[:, each], judged, options), classes.tolist()
    )
    scores = torch.from_numpy(np.stack([each.scores for each in found], axis=1))
    metrics = {"mAP": mean_ap(scores, wanted[:, classes])}
    if labels.ndim == 1:
        right = classes[scores.argmax(dim=1)] == test_labels.cpu()
        metrics["accuracy"] = 100 * float(right.double().mean())
    details = {
        "costs": dict(zip(classes.tolist(), [each.cost for each in found])),
        "cross_validated_mAP": 100 * float(np.nanmean([each.held_out for each in found])),
    }
    fixed = sum(np.isnan(each.held_out) for each in found)
    notes = left_out(rows, classes) + not_converged(sum(each.unfinished for each in found))
    if fixed:
        notes += (f"{fixed} classes have too few images to choose a cost: it is {FIXED_COST:g}",)
    return Outcome(metrics, notes, details)


@dataclass(frozen=True)
class _Class:
    scores: Features
    cost: float
    held_out: float  # average precision; NaN: the cost is fixed
    unfinished: int  # fits that stopped at max_iter


def _of_class(features: Features, row: Tensor, judged: Features, options: Svm) -> _Class:
    known = (row >= 0).numpy()
    features, signs = features[known], signs_of(row[row >= 0])
    folds = min(options.cross_val_folds, int((signs > 0).sum()), int((signs < 0).sum()))
    best, cost, unfinished = float("nan"), FIXED_COST, 0
    if folds > 1:
        split: Any = StratifiedKFold(folds)  # type: ignore[no-untyped-call]
        parts = list(split.split(features, signs))
        for each in options.costs:
            machines = [options.fit(features[used], signs[used], each) for used, _ in parts]
            held_out = fmean(
                average_precision_score(signs[held], machine.decision_function(features[held]))
                for machine, (_, held) in zip(machines, parts, strict=True)
            )
            unfinished += sum(_unfinished(machine, options) for machine in machines)
            if not best >= held_out:  # of equally good costs the first
                best, cost = held_out, each
    machine = options.fit(features, signs, cost)
    scores = machine.decision_function(judged)
    return _Class(scores, cost, best, unfinished + _unfinished(machine, options))


def _unfinished(machine: Any, options: Svm) -> bool:
    return bool(machine.n_iter_ >= options.max_iter)


# ---- shared with low_shot.py


def indicators(labels: Tensor, test_labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of indicators of both sets, (images, classes)."""
    labels, test_labels = labels.cpu(), test_labels.cpu()
    if labels.ndim == 2:
        return labels, test_labels
    classes = 1 + int(labels.max()) if len(labels) else 0
    numbers = torch.arange(classes)
    rows, wanted = (each.unsqueeze(1).eq(numbers).to(torch.int8) for each in (labels, test_labels))
    return rows.masked_fill(labels.lt(0).unsqueeze(1), -1), wanted


def both_kinds(rows: Tensor) -> Tensor:
    """The classes that some images show and others do not."""
    classes = ((rows > 0).any(dim=0) & (rows == 0).any(dim=0)).nonzero().flatten()
    if not len(classes):
        raise DataError("no class has both images that show it and images that do not.")
    return classes


def expect_shown(wanted: Tensor) -> None:
    if not (wanted > 0).any():
        raise DataError("the test images show none of the classes.")


def left_out(rows: Tensor, classes: Tensor) -> tuple[str, ...]:
    count = rows.shape[1] - len(classes)
    note = f"{count} of {rows.shape[1]} classes have no images of both kinds: left out"
    return (note,) * bool(count)


def not_converged(count: int) -> tuple[str, ...]:
    return (f"{count} fits stopped before they converged (max_iter)",) * bool(count)


def signs_of(row: Tensor) -> Signs:
    signs: Signs = torch.where(row > 0, 1, -1).to(torch.int8).numpy()
    return signs


def mean_ap(scores: Tensor, wanted: Tensor) -> float:
    """In percent, over the classes that the test set has."""
    return 100 * float(average_precision(scores, wanted).nanmean())


def in_threads(work: Callable[[Any], Result], items: Sequence[Any]) -> list[Result]:
    """The solver releases the interpreter's lock. That a fit did not converge is counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
            return list(pool.map(work, items))
