"""A linear probe for images of several classes: a logistic regression for each class.

Each is fitted on the images whose indicator for the class is known, all of them at once. One
penalty for all classes is chosen, as in `linear.py`, by the mean average precision on held-out
training images. A class is left out if all its known indicators in the training set are equal.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sslengine.distributed.collectives import gather
from sslengine.errors import DataError
from sslengine.evaluate.features import Chosen, Rows, check_features
from sslengine.evaluate.intervals import bootstrap
from sslengine.evaluate.linear import ROWS, TOLERANCE, ProbeResult, expect_groups, part_of_train
from sslengine.evaluate.logistic import Classifier, curvature
from sslengine.evaluate.minimise import minimise
from sslengine.evaluate.options import LinearProbeOptions
from sslengine.evaluate.outcome import note_choice
from sslengine.evaluate.samples import Samples, rows_at_once, standardisation
from sslengine.meters.mean_ap import average_precision

logger = logging.getLogger(__name__)


def mean_average_precision(scores: Tensor, rows: Tensor) -> float:
    """Measure mAP in percent, over the classes that have an image; NaN if there is none."""
    return 100.0 * float(average_precision(scores, rows.to(scores.device)).nanmean())


@torch.no_grad()
def linear_probe_many(
    train_features: Rows,
    train_rows: Tensor,
    test_features: Rows,
    test_rows: Tensor,
    options: LinearProbeOptions | None = None,
    device: torch.device | None = None,
    over_ranks: bool = False,
    groups: Tensor | None = None,
) -> ProbeResult:
    """Probe with indicators in place of class numbers; the accuracies of the result are mAP."""
    check_features("Linear probe", train_features, train_rows, test_features, over_ranks)
    options = options or LinearProbeOptions()
    how: dict[str, Any] = {"device": device, "over_ranks": over_ranks}
    scale = standardisation(train_features, **how) if options.STANDARDISE else None
    count, width = train_rows.shape

    def samples(features: Rows, rows: Tensor, chosen: Tensor | None = None) -> Samples:
        if chosen is not None:
            features, rows = Chosen(features, chosen), rows[chosen.to(rows.device)]
        return Samples(features, rows, width, scale, **how)

    train, test = samples(train_features, train_rows), samples(test_features, test_rows)
    used, held, chosen_on = train, test, "the test images"
    if options.CHOOSE_ON == "train":
        is_held = _held_out(count, options.HELD_OUT, groups)
        used = samples(train_features, train_rows, (~is_held).nonzero().flatten())
        held = samples(train_features, train_rows, is_held.nonzero().flatten())
        chosen_on = part_of_train(int(is_held.sum()), count, groups)
    penalty, best = _choose_penalty(_Probe(used, options), held, options)
    probe = _Probe(train, options)
    if not probe.fit(penalty):
        logger.warning(
            "The linear probe has not converged in %d iterations "
            "(config.LINEAR_PROBE.MAX_ITERATIONS): its mAP may be too low.",
            options.MAX_ITERATIONS,
        )
    left_out = width - len(probe.classes)
    notes = (f"{left_out} of {width} classes have no images of both kinds",) * bool(left_out)
    scores, wanted = probe.scores(test), test.labels[:, probe.classes]
    interval = bootstrap(lambda some: mean_average_precision(scores[some], wanted[some]), wanted)
    result = mean_average_precision(scores, wanted)
    answers = scores.unique(dim=0, return_counts=True)[1]
    notes += note_choice([penalty], options.PENALTIES, answers)
    return ProbeResult(result, best, penalty, probe.converged, notes, chosen_on, interval)


def _held_out(count: int, share: float, groups: Tensor | None) -> Tensor:
    """Whether each sample is; groups are drawn until the next one exceeds the share."""
    numbers, of, sizes = (torch.arange(count) if groups is None else groups.cpu()).unique(
        return_inverse=True, return_counts=True
    )
    if groups is not None:
        expect_groups(len(numbers))
    order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(0))
    few = int((sizes[order].cumsum(dim=0) <= round(share * count)).sum())
    return torch.isin(of, order[: max(1, few)])


def _choose_penalty(
    probe: _Probe, held: Samples, options: LinearProbeOptions
) -> tuple[float, float]:
    """Fit strong penalties first: each starts where the last has ended."""
    if not len(probe.classes):
        raise DataError(
            "Linear probe: no class has both images that show it and images that do not."
        )
    chosen, best = 0.0, -1.0
    for penalty in sorted(options.PENALTIES, reverse=True):
        probe.fit(penalty)
        found = probe.measure(held)
        if found > best or not chosen:
            chosen, best = penalty, found
    return chosen, best


class _Probe:
    def __init__(self, samples: Samples, options: LinearProbeOptions) -> None:
        rows = samples.labels
        # The classes that some images show and others do not.
        self.classes = ((rows > 0).any(dim=0) & (rows == 0).any(dim=0)).nonzero().flatten()
        self.converged = False
        self._samples, self._options = samples, options
        self._known = (rows[:, self.classes] >= 0).sum(dim=0).double()
        shares = (rows[:, self.classes] > 0).sum(dim=0) / self._known
        self._curved = float((shares * (1 - shares)).mean())
        self._points = rows.new_zeros(len(self.classes), samples.width + 1, dtype=torch.float64)

    def fit(self, penalty: float) -> bool:
        """Fit from where the last fit has ended. Return whether every class has converged."""
        on_sum = self._options.PENALTY_ON == "sum"
        strength = penalty / self._known if on_sum else torch.full_like(self._known, penalty)

        def evaluate(points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
            return self._evaluate(points, which, strength[which])

        about = curvature(self._samples, [float(strength.mean())] * len(strength), self._curved)
        most = self._options.MAX_ITERATIONS
        found = minimise(evaluate, self._points, TOLERANCE, most, about)
        self._points, self.converged = found.points, bool(found.converged.all())
        return self.converged

    def measure(self, samples: Samples) -> float:
        """The mAP over the classes that are fitted, in percent."""
        return mean_average_precision(self.scores(samples), samples.labels[:, self.classes])

    def scores(self, samples: Samples) -> Tensor:
        """Score the samples of all ranks."""
        classifier = Classifier(self._points[:, :-1].T, self._points[:, -1])
        scores = [classifier.scores(features) for features, _ in samples.pieces(ROWS)]
        found = torch.cat([self._points.new_zeros(0, len(self.classes)), *scores])
        return gather(found).rows if samples.over_ranks else found

    def _evaluate(self, points: Tensor, which: Tensor, penalty: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the objectives of some classes and their gradients by one product."""
        weight, classes = points[:, :-1], self.classes[which]
        value, gradient = torch.zeros_like(penalty), torch.zeros_like(points)
        for features, rows in self._samples.pieces(rows_at_once(len(points), weight.shape[1])):
            rows = rows[:, classes]
            shown, known = (rows > 0).double(), (rows >= 0).double() / self._known[which]
            logits = features @ weight.T + points[:, -1]
            value += ((softplus(logits) - shown * logits) * known).sum(dim=0)
            error = (logits.sigmoid() - shown) * known
            gradient[:, :-1] += error.T @ features
            gradient[:, -1] += error.sum(dim=0)
        value, gradient = self._samples.summed(value), self._samples.summed(gradient)
        value += penalty / 2 * weight.square().sum(dim=1)
        gradient[:, :-1] += penalty.unsqueeze(1) * weight
        return value, gradient
