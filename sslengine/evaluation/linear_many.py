"""A linear probe for images of several classes: a logistic regression for each class.

Each is fitted on the images whose indicator for the class is known. One penalty for all classes
is chosen, as in `linear.py`, by the mean average precision on held-out training images. A class is
left out if all its known indicators in the training set are equal.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluation.features import check_features
from sslengine.evaluation.linear import LinearProbe
from sslengine.evaluation.options import LinearProbeOptions
from sslengine.meters.average_precision import average_precision

logger = logging.getLogger(__name__)

Features = NDArray[np.float64]
Rows = NDArray[np.int8]


def mean_average_precision(scores: Tensor, rows: Tensor) -> float:
    """In percent, over the classes that have an image; NaN if there is none."""
    return 100.0 * float(average_precision(scores, rows.to(scores.device)).nanmean())


def linear_probe_of_many(
    train_features: Tensor,
    train_rows: Tensor,
    test_features: Tensor,
    test_rows: Tensor,
    options: LinearProbeOptions | None = None,
) -> LinearProbe:
    """As linear_probe, with indicators in place of class numbers; its accuracies are mAP."""
    check_features("Linear probe", train_features, train_rows, test_features)
    options = options or LinearProbeOptions()
    scale: Any = StandardScaler()  # type: ignore[no-untyped-call]
    train, test = (
        scale.fit_transform(_matrix(train_features)),
        scale.transform(_matrix(test_features)),
    )
    rows = train_rows.cpu().numpy()
    held = _held_out(len(rows), options.HELD_OUT)
    classes = _fitted(rows[~held])
    if not classes.size:
        raise DataError(
            "Linear probe: no class has both images that show it and images that do not."
        )
    probe = _Probe(classes, options.MAX_ITERATIONS)
    chosen, best = 0.0, -1.0
    for penalty in sorted(options.PENALTIES, reverse=True):
        probe.fit(train[~held], rows[~held], penalty)
        found = probe.measure(train[held], torch.from_numpy(rows[held]))
        if found < best:
            break
        if found > best or not chosen:
            chosen, best = penalty, found
    probe = _Probe(_fitted(rows), options.MAX_ITERATIONS)
    converged = probe.fit(train, rows, chosen)
    if not converged:
        logger.warning(
            "The linear probe has not converged in %d iterations "
            "(config.LINEAR_PROBE.MAX_ITERATIONS): its mAP may be too low.",
            options.MAX_ITERATIONS,
        )
    return LinearProbe(
        probe.measure(test, test_rows.cpu()), best, chosen, converged, probe.note(rows.shape[1])
    )


class _Probe:
    def __init__(self, classes: NDArray[np.int64], iterations: int) -> None:
        self.classes = classes
        self._by_class: dict[int, Any] = {
            int(each): LogisticRegression(warm_start=True, max_iter=iterations)  # type: ignore[no-untyped-call]
            for each in classes
        }

    def fit(self, features: Features, rows: Rows, penalty: float) -> bool:
        """Has every class converged?"""
        converged = True
        for each, classifier in self._by_class.items():
            known = rows[:, each] >= 0
            converged &= _fit(classifier, features[known], rows[known, each], penalty)
        return converged

    def measure(self, features: Features, rows: Tensor) -> float:
        """The mAP over the classes that are fitted, in percent."""
        scores = [each.decision_function(features) for each in self._by_class.values()]
        wanted = rows[:, torch.from_numpy(self.classes)]
        return mean_average_precision(torch.from_numpy(np.stack(scores, axis=1)), wanted)

    def note(self, count: int) -> str:
        left_out = count - len(self.classes)
        return f"{left_out} of {count} classes have no images of both kinds" if left_out else ""


def _fit(classifier: Any, features: Features, labels: Rows, penalty: float) -> bool:
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


def _matrix(features: Tensor) -> Features:
    matrix: Features = features.flatten(1).double().cpu().numpy()
    return matrix


def _held_out(count: int, share: float) -> NDArray[np.bool_]:
    held = np.zeros(count, bool)
    held[np.random.default_rng(0).permutation(count)[: max(1, round(share * count))]] = True
    return held


def _fitted(rows: Rows) -> NDArray[np.int64]:
    """The classes that some images show and others do not."""
    return np.flatnonzero((rows > 0).any(axis=0) & (rows == 0).any(axis=0))
