"""A linear probe: the accuracy of a linear classifier on frozen features.

It is the multinomial logistic regression of logistic.py, on standardised features. The penalty is
chosen on held-out training samples; then the classifier is fitted to all
training samples. The test features are used once, at the end. The result is deterministic.
Of a class with a single sample none is held out. If no class has two, the penalty is
FIXED_PENALTY, and the result's note says so. Samples of one group (a patient, a video) are held
out together: a penalty that is chosen by others of a group that was fitted is too weak.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedShuffleSplit
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import Chosen, Rows, blocks, check_features
from sslengine.evaluate.logistic import Classifier, fit, fit_path
from sslengine.evaluate.options import LinearProbeOptions
from sslengine.evaluate.outcome import note_choice
from sslengine.evaluate.samples import Samples, standardisation

logger = logging.getLogger(__name__)

# Used if there are too few samples to choose the penalty.
FIXED_PENALTY = 0.01
# Of the gradient, where a classifier has converged.
TOLERANCE = 1e-5
ROWS = 2**14  # scored at once

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Fitted:
    """A classifier of features that are standardised, if there is a scale."""

    classifier: Classifier
    numbers: Tensor  # of the classes
    scale: tuple[Tensor, Tensor] | None

    def logits(self, features: Rows) -> Tensor:
        """Compute a row for each image, in float64."""
        found = []
        for block in blocks(features):
            rows = block.to(self.numbers.device).double()
            rows = rows if self.scale is None else (rows - self.scale[0]) / self.scale[1]
            found.append(self.classifier.scores(rows))
        return torch.cat(found)

    def answers(self, features: Rows, among: Tensor | None = None) -> Tensor:
        """Class numbers, on the CPU. among: the numbers of the classes that may be answered."""
        found = []
        for block in blocks(features, ROWS):
            scores = self.logits(block)
            if among is not None:
                allowed = torch.isin(self.numbers, among.to(self.numbers.device))
                scores = scores.masked_fill(~allowed, -torch.inf)
            found.append(self.numbers[scores.argmax(dim=1)].cpu())
        return torch.cat(found)

    def places(self, labels: Tensor) -> Tensor:
        """Find the places of class numbers; of a class that training lacks: after the last."""
        labels = labels.to(self.numbers.device)
        place = torch.searchsorted(self.numbers, labels).clamp(max=len(self.numbers) - 1)
        return torch.where(self.numbers[place] == labels, place, len(self.numbers))


@dataclass(frozen=True)
class ProbeResult:
    """The result of a linear probe."""

    # In percent; NaN if nothing could be held out.
    test_accuracy: float
    held_out_accuracy: float
    penalty: float
    # False: more iterations would still change the classifier and its accuracies.
    converged: bool
    # How the penalty was chosen, if that was unusual, and what makes the score doubtful.
    notes: tuple[str, ...] = ()
    # By what it was chosen.
    chosen_on: str = ""
    # 95 % interval of the test accuracy where it is no accuracy but mAP.
    interval: list[float] = field(default_factory=list)
    # None: of several classes of an image.
    fitted: Fitted | None = field(default=None, compare=False)

    @property
    def chosen(self) -> dict[str, Any]:
        """The chosen penalty, for a report."""
        return {"penalty": self.penalty, "chosen_on": self.chosen_on}


@torch.no_grad()
def linear_probe(
    train_features: Rows,
    train_labels: Tensor,
    test_features: Rows,
    test_labels: Tensor,
    options: LinearProbeOptions | None = None,
    device: torch.device | None = None,
    over_ranks: bool = False,
    groups: Tensor | None = None,
    warns: bool = True,
) -> ProbeResult:
    """Fit on the training features, test on the test features: N x anything; in float64.

    groups: a number for each training sample; those with the same one are held out together.
    over_ranks: all ranks call it, with the same features, and share the samples.
    warns: of what is unusual; false where the caller reports `notes` and `converged`.
    """
    check_features("Linear probe", train_features, train_labels, test_features, over_ranks)
    if train_labels.ndim != 1:
        raise DataError("Linear probe: labels are rows of indicators; see linear_probe_many.")
    options = options or LinearProbeOptions()
    used, unused, note, chosen_on = _split_rows(train_labels, options, groups)
    if note and warns:
        logger.warning("Linear probe: %s.", note)
    how: dict[str, Any] = {"device": device, "over_ranks": over_ranks}
    scale = standardisation(train_features, **how) if options.STANDARDISE else None
    # Numbers of classes that no training sample has would take part in the sum of chances.
    numbers, labels = train_labels.unique(return_inverse=True)
    numbers = numbers.to(device)

    def samples(rows: Labels | None, dtype: torch.dtype = torch.float64) -> Samples:
        if rows is None:
            return Samples(train_features, labels, len(numbers), scale, dtype, **how)
        some = torch.from_numpy(np.sort(rows))
        chosen = Chosen(train_features, some)
        return Samples(chosen, labels[some.to(labels.device)], len(numbers), scale, dtype, **how)

    test = Samples(test_features, test_labels, len(numbers), scale, **how)
    penalty, held_out_accuracy, start = FIXED_PENALTY, float("nan"), None
    if options.CHOOSE_ON == "test":
        penalty, _, start = _choose_penalty(samples(None), test, options, numbers)
    elif unused.size:
        # In single precision, which takes half the time: only which penalty is best matters.
        fitted, held_out = (samples(each, torch.float32) for each in (used, unused))
        penalty, held_out_accuracy, start = _choose_penalty(fitted, held_out, options)
    classifier, converged = _fit(samples(None), penalty, options, start)
    if not converged and warns:
        logger.warning("Linear probe: %s.", unconverged(options))
    accuracy = measure_accuracy(classifier, test, numbers)
    tried = [penalty] if start else []
    notes = note_choice(tried, options.PENALTIES, count_answers(classifier, test))
    return ProbeResult(
        accuracy, held_out_accuracy, penalty, converged, (note, *notes) if note else notes,
        chosen_on, fitted=Fitted(classifier, numbers, scale),
    )  # fmt: skip


def unconverged(options: LinearProbeOptions) -> str:
    return (
        f"it has not converged in {options.MAX_ITERATIONS} iterations "
        f"(config.LINEAR_PROBE.MAX_ITERATIONS): its accuracy may be too low"
    )


def _split_rows(
    train_labels: Tensor, options: LinearProbeOptions, groups: Tensor | None
) -> tuple[Labels, Labels, str, str]:
    """The rows to fit and those to choose by, a note if that is unusual, and what chooses."""
    labels: Labels = train_labels.cpu().numpy()
    if options.CHOOSE_ON == "test":
        expect_two(labels)
        return np.arange(len(labels)), np.arange(0), "", "the test images"
    used, unused, note = hold_out(labels, options.HELD_OUT, groups)
    share = part_of_train(len(unused), len(labels), groups)
    return used, unused, note, share if unused.size else "nothing: it is fixed"


def part_of_train(held: int, count: int, groups: Tensor | None) -> str:
    """Tell by what a penalty is chosen, for a report."""
    whole = "" if groups is None else " in whole groups"
    return f"{held} of {count} training images{whole}"


def hold_out(
    labels: Labels, share: float, groups: Tensor | None = None
) -> tuple[Labels, Labels, str]:
    """The rows to fit, the rows to choose the penalty by, and a note if that is unusual."""
    expect_two(labels)
    most = int(np.unique(labels, return_counts=True)[1].max())
    if groups is not None and most > 1:
        return *_hold_out_groups(labels, groups.cpu().numpy(), share, most), ""
    split: Any = StratifiedShuffleSplit(  # type: ignore[no-untyped-call]
        n_splits=1, test_size=share, random_state=0
    )
    try:
        used, unused = next(split.split(np.zeros((len(labels), 1)), labels))
    except ValueError:  # a class of one sample, or fewer rows to hold out than classes
        return _hold_out_of_each(labels, share)
    return used, unused, ""


def _hold_out_groups(
    labels: Labels, groups: Labels, share: float, most: int
) -> tuple[Labels, Labels]:
    """About the share, with each class' part in it, if groups allow that.

    most: how many samples the largest class has.
    """
    several = len(np.unique(groups))
    expect_groups(several)
    count = min(several, max(2, round(1 / share)), most)
    folds: Any = StratifiedGroupKFold(  # type: ignore[no-untyped-call]
        count, shuffle=True, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class of fewer samples than folds
        parts = [held for _, held in folds.split(labels, labels, groups)]
    held = next(each for each in parts if each.size)
    return np.setdiff1d(np.arange(len(labels)), held), held


def expect_groups(count: int) -> None:
    if count < 2:
        raise DataError(
            "Linear probe: config.LINEAR_PROBE.GROUP_COLUMN: all training images have the same "
            "value there, so no whole group can be held out."
        )


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


def expect_two(labels: Labels) -> None:
    if len(np.unique(labels)) < 2:
        raise DataError(f"Linear probe: the {len(labels)} training labels are all the same.")


def _choose_penalty(
    used: Samples, held_out: Samples, options: LinearProbeOptions, numbers: Tensor | None = None
) -> tuple[float, float, Classifier]:
    """The penalty with the best accuracy, of equal ones the strongest; that; and its classifier."""
    order = sorted(options.PENALTIES, reverse=True)
    strongest, _ = _fit(used, order[0], options, None)
    if (accuracy := measure_accuracy(strongest, held_out, numbers)) == 100:  # so none is better
        return order[0], accuracy, strongest
    strengths = [scale_penalty(used, each, options) for each in order]
    found = fit_path(used, strengths, TOLERANCE, options.MAX_ITERATIONS).classifiers
    accuracies = measure_accuracies(found, held_out, numbers)
    place = max(range(len(order)), key=lambda each: accuracies[each])
    return order[place], accuracies[place], found[place]


def scale_penalty(samples: Samples, penalty: float, options: LinearProbeOptions) -> float:
    """Return the penalty on the mean of the losses."""
    return penalty / (len(samples) if options.PENALTY_ON == "sum" else 1)


def _fit(
    samples: Samples, penalty: float, options: LinearProbeOptions, start: Classifier | None
) -> tuple[Classifier, bool]:
    """A classifier, and whether it has converged."""
    strength = scale_penalty(samples, penalty, options)
    found = fit(samples, [strength], start, TOLERANCE, options.MAX_ITERATIONS)
    return found.classifiers[0], found.converged[0]


def measure_accuracy(
    classifier: Classifier, samples: Samples, numbers: Tensor | None = None
) -> float:
    """Return a percentage. numbers: of the classes, if labels are not places among them."""
    return measure_accuracies([classifier], samples, numbers)[0]


def count_answers(classifier: Classifier, samples: Samples) -> Tensor:
    """Count how often each class is answered."""
    counts = torch.zeros(samples.classes, dtype=torch.int64, device=samples.labels.device)
    for features, _ in samples.pieces(ROWS):
        answers = classifier.scores(features).argmax(dim=1)
        counts += answers.bincount(minlength=samples.classes)
    return samples.summed(counts)


def measure_accuracies(
    classifiers: Sequence[Classifier], samples: Samples, numbers: Tensor | None = None
) -> list[float]:
    """Measure all in one pass over the samples."""
    right = torch.zeros(len(classifiers), dtype=torch.float64, device=samples.labels.device)
    for features, labels in samples.pieces(ROWS):
        for place, each in enumerate(classifiers):
            best = each.scores(features).argmax(dim=1)
            right[place] += ((best if numbers is None else numbers[best]) == labels).sum()
    return (100.0 * samples.summed(right) / len(samples)).tolist()
