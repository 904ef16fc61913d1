"""A linear probe: the accuracy of a linear classifier on frozen features.

It is scikit-learn's multinomial logistic regression on standardised features, which minimises

    mean over the samples of -log p(label)  +  penalty / 2 * |W|^2

The penalty is chosen on held-out training samples; then the classifier is fitted to all
training samples. The test features are used once, at the end. The result is deterministic.
Of a class with a single sample none is held out. If no class has two, the penalty is
FIXED_PENALTY, and the result's note says so.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluation.features import check_features
from sslengine.evaluation.options import LinearProbeOptions

logger = logging.getLogger(__name__)

# Used if there are too few samples to choose the penalty.
FIXED_PENALTY = 0.01

Features = NDArray[np.float64]
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
    """Fit on the training features, test on the test features: N x anything; CPU, float64."""
    check_features("Linear probe", train_features, train_labels, test_features)
    if train_labels.ndim != 1:
        raise DataError("Linear probe: labels are rows of indicators; see linear_probe_of_many.")
    options = options or LinearProbeOptions()
    scale: Any = StandardScaler()  # type: ignore[no-untyped-call]
    train = scale.fit_transform(matrix(train_features))
    test = scale.transform(matrix(test_features))
    labels = train_labels.cpu().numpy()
    classifier: Any = LogisticRegression(  # type: ignore[no-untyped-call]
        warm_start=True, max_iter=options.MAX_ITERATIONS
    )
    used, unused, note = _hold_out(labels, options.HELD_OUT)
    if note:
        logger.warning("Linear probe: %s.", note)
    penalty, held_out_accuracy = FIXED_PENALTY, float("nan")
    if unused.size:
        parts = train[used], labels[used], train[unused], labels[unused]
        penalty, held_out_accuracy = _choose_penalty(classifier, *parts, options)
    converged = fit(classifier, train, labels, penalty)
    if not converged:
        logger.warning(
            "The linear probe has not converged in %d iterations "
            "(config.LINEAR_PROBE.MAX_ITERATIONS): its accuracy may be too low.",
            options.MAX_ITERATIONS,
        )
    accuracy = 100.0 * classifier.score(test, test_labels.cpu().numpy())
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
    classifier: Any,
    features: Features,
    labels: Labels,
    held_out: Features,
    held_out_labels: Labels,
    options: LinearProbeOptions,
) -> tuple[float, float]:
    """The penalty with the best held-out accuracy, and that accuracy.

    Tries strong penalties first, until the accuracy falls: weak ones take most of the time.
    """
    chosen, best = 0.0, -1.0
    for penalty in sorted(options.PENALTIES, reverse=True):
        fit(classifier, features, labels, penalty)
        accuracy = 100.0 * classifier.score(held_out, held_out_labels)
        if accuracy < best:
            break
        if accuracy > best:
            chosen, best = penalty, accuracy
    return chosen, best


def fit(classifier: Any, features: Features, labels: Labels, penalty: float) -> bool:
    """Fit, starting from the last fit. Returns whether it converged."""
    # scikit-learn multiplies the sum of the losses by C; its penalty has weight 1.
    classifier.set_params(C=1.0 / (penalty * len(features)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        classifier.fit(features, labels)
    for each in caught:
        if not issubclass(each.category, ConvergenceWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return not any(issubclass(each.category, ConvergenceWarning) for each in caught)


def matrix(features: Tensor) -> Features:
    matrix: Features = features.flatten(1).double().cpu().numpy()
    return matrix
