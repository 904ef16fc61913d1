"""A linear probe: how well does a linear classifier do on frozen features?

Multinomial logistic regression on standardised features, by scikit-learn, which minimises

    mean over the samples of -log p(label)  +  penalty / 2 * |W|^2

The penalty is chosen on training samples that are held out; then the classifier is fitted
to all of them. The test features are looked at once, at the end. Nothing is left to
chance: the same features give the same accuracy.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
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

logger = logging.getLogger(__name__)

Features = NDArray[np.float64]
Labels = NDArray[np.int64]

PENALTIES = (10.0, 1.0, 0.1, 0.01, 0.001)


@dataclass(frozen=True)
class LinearProbe:
    """What the probe found."""

    # Percentages.
    test_accuracy: float
    held_out_accuracy: float
    penalty: float
    # False: the accuracies are those of a classifier that more iterations would still change.
    converged: bool


def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    penalties: Sequence[float] = PENALTIES,
    held_out: float = 0.2,
    max_iterations: int = 1000,
) -> LinearProbe:
    """Fit on the training features, measure on the test features. N x anything; CPU, float64."""
    train, test = _matrix(train_features, "training"), _matrix(test_features, "test")
    labels, test_targets = train_labels.cpu().numpy(), test_labels.cpu().numpy()
    scale = StandardScaler().fit(train)
    train, test = scale.transform(train), scale.transform(test)
    fit = _Fit(max_iterations)
    penalty, held_out_accuracy = _choose_penalty(train, labels, penalties, held_out, fit)
    classifier = fit(train, labels, penalty)
    if not fit.converged:
        logger.warning(
            "The linear probe did not converge in %d iterations (config.LINEAR_PROBE."
            "MAX_ITERATIONS); its accuracy may be too low.",
            max_iterations,
        )
    accuracy = 100.0 * classifier.score(test, test_targets)
    return LinearProbe(accuracy, held_out_accuracy, penalty, fit.converged)


class _Fit:
    """Fits classifiers, each from where the last one ended; knows whether all converged."""

    def __init__(self, max_iterations: int) -> None:
        self._classifier = LogisticRegression(warm_start=True, max_iter=max_iterations)
        self.converged = True

    def __call__(self, features: Features, labels: Labels, penalty: float) -> Any:
        # scikit-learn weighs the sum of the losses by C, and the penalty by 1.
        self._classifier.set_params(C=1.0 / (penalty * len(features)))
        with warnings.catch_warnings(record=True) as told:
            self._classifier.fit(features, labels)
        for each in told:
            if issubclass(each.category, ConvergenceWarning):
                self.converged = False
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        return self._classifier


def _choose_penalty(
    features: Features,
    labels: Labels,
    penalties: Sequence[float],
    held_out: float,
    fit: _Fit,
) -> tuple[float, float]:
    """The penalty of the best held-out accuracy, and that.

    From strong to weak, until the accuracy falls: the weak ones take most of the time.
    """
    split = StratifiedShuffleSplit(n_splits=1, test_size=held_out, random_state=0)
    try:
        used, unused = next(split.split(features, labels))
    except ValueError as error:
        raise DataError(f"Linear probe, holding out training samples: {error}") from error
    chosen, best = max(penalties), -1.0
    for penalty in sorted(penalties, reverse=True):
        classifier = fit(features[used], labels[used], penalty)
        accuracy = 100.0 * classifier.score(features[unused], labels[unused])
        if accuracy < best:
            break
        if accuracy > best:
            chosen, best = penalty, accuracy
    return chosen, best


def _matrix(features: Tensor, name: str) -> Features:
    matrix: Features = features.flatten(1).double().cpu().numpy()
    if not np.isfinite(matrix).all():
        raise DataError(f"Linear probe: some {name} features are NaN or infinite.")
    return matrix
