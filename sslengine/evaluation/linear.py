"""A linear probe: the accuracy of a linear classifier on frozen features.

It is the multinomial logistic regression of logistic.py, on standardised features. The penalty is
chosen on held-out training samples; then the classifier is fitted to all
training samples. The test features are used once, at the end. The result is deterministic.
Of a class with a single sample none is held out. If no class has two, the penalty is
FIXED_PENALTY, and the result's note says so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedShuffleSplit
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluation.features import check_features
from sslengine.evaluation.logistic import Classifier, Samples, fit, standardisation
from sslengine.evaluation.options import LinearProbeOptions

logger = logging.getLogger(__name__)

# Used if there are too few samples to choose the penalty.
FIXED_PENALTY = 0.01
# Of the gradient, where a classifier has converged.
TOLERANCE = 1e-4
ROWS = 2**14  # scored at once

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class LinearProbe:
    """The result of a linear probe."""

    # In percent; NaN if nothing could be held out.
    test_accuracy: float
    held_out_accuracy: float
    penalty: float
    # False: more iterations would still change the classifier and its accuracies.
    converged: bool
    # How the penalty was chosen, if that was unusual.
    note: str = ""


def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    options: LinearProbeOptions | None = None,
) -> LinearProbe:
    """Fit on the training features, test on the test features: N x anything; in float64."""
    check_features("Linear probe", train_features, train_labels, test_features)
    if train_labels.ndim != 1:
        raise DataError("Linear probe: labels are rows of indicators; see linear_probe_of_many.")
    options = options or LinearProbeOptions()
    used, unused, note = _hold_out(train_labels.cpu().numpy(), options.HELD_OUT)
    if note:
        logger.warning("Linear probe: %s.", note)
    scale = standardisation(train_features)
    # Numbers of classes that no training sample has would take part in the sum of chances.
    numbers, labels = train_labels.unique(return_inverse=True)

    def samples(rows: Tensor | slice, dtype: torch.dtype = torch.float64) -> Samples:
        return Samples(train_features[rows], labels[rows], len(numbers), scale, dtype)

    penalty, held_out_accuracy, start = FIXED_PENALTY, float("nan"), None
    if unused.size:
        # In single precision, which takes half the time: only which penalty is best matters.
        sets = (samples(torch.from_numpy(each), torch.float32) for each in (used, unused))
        fitted, held_out = sets
        penalty, held_out_accuracy, start = _choose_penalty(fitted, held_out, options)
    classifier, converged = _fit(samples(slice(None)), penalty, options, start)
    if not converged:
        logger.warning(
            "The linear probe has not converged in %d iterations "
            "(config.LINEAR_PROBE.MAX_ITERATIONS): its accuracy may be too low.",
            options.MAX_ITERATIONS,
        )
    test = Samples(test_features, test_labels, len(numbers), scale)
    accuracy = accuracy_of(classifier, test, numbers)
    return LinearProbe(accuracy, held_out_accuracy, penalty, converged, note)


def _hold_out(labels: Labels, share: float) -> tuple[Labels, Labels, str]:
    """The rows to fit, the rows to choose the penalty by, and a note if that is unusual."""
    if len(np.unique(labels)) < 2:
        raise DataError(f"Linear probe: the {len(labels)} training labels are all the same.")
    split: Any = StratifiedShuffleSplit(  # type: ignore[no-untyped-call]
        n_splits=1, test_size=share, random_state=0
    )
    try:
        used, unused = next(split.split(np.zeros((len(labels), 1)), labels))
    except ValueError:  # a class of one sample, or fewer rows to hold out than classes
        return _hold_out_of_each(labels, share)
    return used, unused, ""


def _hold_out_of_each(labels: Labels, share: float) -> tuple[Labels, Labels, str]:
    """Hold out at least one row of each class that has two; the first of each is not held out."""
    draw, held = np.random.default_rng(0), np.zeros(len(labels), bool)
    counts = []
    for each in np.unique(labels):
        rows = draw.permutation(np.flatnonzero(labels == each))
        counts.append(len(rows))
        held[rows[1 : 1 + max(1, round(share * len(rows)))]] = True
    alone = counts.count(1)
    if alone == len(counts):
        note = f"no class has two samples, so none is held out; the penalty is {FIXED_PENALTY:g}"
    else:
        note = f"the penalty is chosen by {held.sum()} held-out samples, at least one of each class"
        note += f" except the {alone} with a single sample" if alone else ""
    return np.flatnonzero(~held), np.flatnonzero(held), note


def _choose_penalty(
    used: Samples, held_out: Samples, options: LinearProbeOptions
) -> tuple[float, float, Classifier | None]:
    """The penalty with the best held-out accuracy, that accuracy, and its classifier.

    Tries strong penalties first, until the accuracy falls: weak ones take most of the time.
    """
    chosen, best, classifier, last = 0.0, -1.0, None, None
    for penalty in sorted(options.PENALTIES, reverse=True):
        last, _ = _fit(used, penalty, options, last)
        accuracy = accuracy_of(last, held_out)
        if accuracy < best:
            break
        if accuracy > best:
            chosen, best, classifier = penalty, accuracy, last
    return chosen, best, classifier


def _fit(
    samples: Samples, penalty: float, options: LinearProbeOptions, start: Classifier | None
) -> tuple[Classifier, bool]:
    """A classifier, and whether it has converged."""
    found = fit(samples, [penalty], start, TOLERANCE, options.MAX_ITERATIONS)
    return found.classifiers[0], found.converged[0]


def accuracy_of(classifier: Classifier, samples: Samples, numbers: Tensor | None = None) -> float:
    """In percent. numbers: those of the classes, if the labels are not places among them."""
    right = 0
    for features, labels in samples.pieces(ROWS):
        best = classifier.scores(features).argmax(dim=1)
        right += int(((best if numbers is None else numbers[best]) == labels).sum())
    return 100.0 * right / len(samples)
