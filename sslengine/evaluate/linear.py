"""Linear probes: the score of a linear classifier on frozen features.

It is the logistic regression of logistic.py, on standardised features: multinomial, or of images
of several classes one regression for each class, fitted on the images whose indicator is known.
The penalty is chosen on held-out training samples, by the accuracy or the mean average precision;
then the classifier is fitted to all training samples. The test features are used once, at the end.
The result is deterministic.

Of a class with a single sample none is held out. If no class has two, the penalty is
FIXED_PENALTY, and the result's note says so. Samples of one group (a patient, a video) are held
out together: a penalty that is chosen by others of a group that was fitted is too weak.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedShuffleSplit
from torch import Tensor

from sslengine.distributed.collectives import gather
from sslengine.errors import DataError
from sslengine.evaluate.features import Rows, blocks, check_features
from sslengine.evaluate.intervals import bootstrap
from sslengine.evaluate.logistic import (
    Classifier,
    Samples,
    binary_losses,
    curvature,
    fit,
    fit_path,
    minimise,
    standardisation,
)
from sslengine.evaluate.options import LinearProbeOptions
from sslengine.evaluate.outcome import note_choice
from sslengine.meters.mean_ap import average_precision

NAME = "Linear probe"
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
        """Return class numbers, on the CPU. among: of the classes that may be answered."""
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

    # In percent, or mAP; NaN if nothing could be held out.
    test_accuracy: float
    held_out_accuracy: float
    penalty: float
    # What makes the score doubtful, and how the penalty was chosen if that was unusual.
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
) -> ProbeResult:
    """Fit on the training features, test on the test features: N x anything; in float64.

    labels: class numbers; or rows of indicators 1, 0 and -1 for unknown: the accuracies are mAP.
    groups: a number for each training sample; those with the same one are held out together.
    over_ranks: all ranks call it, with the same features, and share the samples.
    """
    check_features(NAME, train_features, train_labels, test_features, over_ranks)
    options = options or LinearProbeOptions()
    how: dict[str, Any] = {"device": device, "over_ranks": over_ranks}
    scale = standardisation(train_features, **how) if options.STANDARDISE else None
    if train_labels.ndim > 1:
        train = Samples(train_features, train_labels, train_labels.shape[1], scale, **how)
        test = Samples(test_features, test_labels, train_labels.shape[1], scale, **how)
        return _probe_each_class(train, test, options, groups)
    given: Labels = train_labels.cpu().numpy()
    note, chosen_on, unused = "", "the test images", np.arange(0)
    if options.CHOOSE_ON == "test":
        expect_two(given)
    else:
        used, unused, note = hold_out(given, options.HELD_OUT, groups)
        share = _part_of_train(len(unused), len(given), groups)
        chosen_on = share if unused.size else "nothing: it is fixed"
    # Numbers of classes that no training sample has would take part in the sum of chances.
    numbers, labels = train_labels.unique(return_inverse=True)
    numbers = numbers.to(device)
    every = Samples(train_features, labels, len(numbers), scale, **how)
    test = Samples(test_features, test_labels, len(numbers), scale, **how)
    penalty, held_out_accuracy, start = FIXED_PENALTY, float("nan"), None
    if options.CHOOSE_ON == "test":
        penalty, _, start = _choose_penalty(every, test, options, numbers)
    elif unused.size:
        # In single precision, which takes half the time: only which penalty is best matters.
        fitted, held_out = (every.choose(torch.from_numpy(np.sort(each)), torch.float32)
                            for each in (used, unused))  # fmt: skip
        penalty, held_out_accuracy, start = _choose_penalty(fitted, held_out, options)
    best, converged = _fit(every, penalty, options, start)
    (accuracy,) = measure_accuracies([best], test, numbers)
    tried = [penalty] if start else []
    notes = (note,) * bool(note) + note_choice(tried, options.PENALTIES, count_answers(best, test))
    return ProbeResult(
        accuracy, held_out_accuracy, penalty, notes + note_unconverged(converged, options),
        chosen_on, fitted=Fitted(best, numbers, scale),
    )  # fmt: skip


def note_unconverged(converged: bool, options: LinearProbeOptions) -> tuple[str, ...]:
    text = (
        f"it has not converged in {options.MAX_ITERATIONS} iterations "
        f"(config.LINEAR_PROBE.MAX_ITERATIONS): its score may be too low"
    )
    return (text,) * (not converged)


# ---- what is held out


def _part_of_train(held: int, count: int, groups: Tensor | None) -> str:
    whole = "" if groups is None else " in whole groups"
    return f"{held} of {count} training images{whole}"


def hold_out(
    labels: Labels, share: float, groups: Tensor | None = None
) -> tuple[Labels, Labels, str]:
    """Return the rows to fit, the rows to choose the penalty by, and a note if it is unusual."""
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
    """Hold out about the share, with each class' part in it, if groups allow that.

    most: how many samples the largest class has.
    """
    several = len(np.unique(groups))
    _expect_groups(several)
    count = min(several, max(2, round(1 / share)), most)
    folds: Any = StratifiedGroupKFold(  # type: ignore[no-untyped-call]
        count, shuffle=True, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class of fewer samples than folds
        parts = [held for _, held in folds.split(labels, labels, groups)]
    held = next(each for each in parts if each.size)
    return np.setdiff1d(np.arange(len(labels)), held), held


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


def _hold_out_any(count: int, share: float, groups: Tensor | None) -> Tensor:
    """Say of each sample whether it is held out: groups, until the next one exceeds the share."""
    numbers, of, sizes = (torch.arange(count) if groups is None else groups.cpu()).unique(
        return_inverse=True, return_counts=True
    )
    if groups is not None:
        _expect_groups(len(numbers))
    order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(0))
    few = int((sizes[order].cumsum(dim=0) <= round(share * count)).sum())
    return torch.isin(of, order[: max(1, few)])


def _expect_groups(count: int) -> None:
    if count < 2:
        raise DataError(
            f"{NAME}: config.LINEAR_PROBE.GROUP_COLUMN: all training images have the same value "
            f"there, so no whole group can be held out."
        )


def expect_two(labels: Labels) -> None:
    if len(np.unique(labels)) < 2:
        raise DataError(f"{NAME}: the {len(labels)} training labels are all the same.")


# ---- one class of each image


def _choose_penalty(
    used: Samples, held_out: Samples, options: LinearProbeOptions, numbers: Tensor | None = None
) -> tuple[float, float, Classifier]:
    """Return the best penalty, of equally good ones the strongest, its accuracy and classifier."""
    order = sorted(options.PENALTIES, reverse=True)
    strongest, _ = _fit(used, order[0], options, None)
    (accuracy,) = measure_accuracies([strongest], held_out, numbers)
    if accuracy == 100:  # so none is better
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
    """Return a classifier, and whether it has converged."""
    strength = scale_penalty(samples, penalty, options)
    found = fit(samples, [strength], start, TOLERANCE, options.MAX_ITERATIONS)
    return found.classifiers[0], found.converged[0]


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
    """Measure percentages in one pass over the samples.

    numbers: of the classes, if labels are not places among them.
    """
    right = torch.zeros(len(classifiers), dtype=torch.float64, device=samples.labels.device)
    for features, labels in samples.pieces(ROWS):
        for place, each in enumerate(classifiers):
            best = each.scores(features).argmax(dim=1)
            right[place] += ((best if numbers is None else numbers[best]) == labels).sum()
    return (100.0 * samples.summed(right) / len(samples)).tolist()


# ---- several classes of an image


def mean_average_precision(scores: Tensor, rows: Tensor) -> float:
    """Measure mAP in percent, over the classes that have an image; NaN if there is none."""
    return 100.0 * float(average_precision(scores, rows.to(scores.device)).nanmean())


def _probe_each_class(
    train: Samples, test: Samples, options: LinearProbeOptions, groups: Tensor | None
) -> ProbeResult:
    """Leave a class out if all its known indicators in the training set are equal."""
    used, held, chosen_on = train, test, "the test images"
    if options.CHOOSE_ON == "train":
        is_held = _hold_out_any(len(train), options.HELD_OUT, groups)
        used, held = (train.choose(each.nonzero().flatten()) for each in (~is_held, is_held))
        chosen_on = _part_of_train(int(is_held.sum()), len(train), groups)
    regressions = _Regressions(used, options)
    penalty, best = 0.0, -1.0
    for each in sorted(options.PENALTIES, reverse=True):  # each starts where the last has ended
        regressions.fit(each)
        wanted = held.labels[:, regressions.classes]
        found = mean_average_precision(regressions.scores(held), wanted)
        if found > best or not penalty:
            penalty, best = each, found
    regressions = _Regressions(train, options)
    converged = regressions.fit(penalty)
    left_out = train.classes - len(regressions.classes)
    scores, wanted = regressions.scores(test), test.labels[:, regressions.classes]
    interval = bootstrap(lambda some: mean_average_precision(scores[some], wanted[some]), wanted)
    answers = scores.unique(dim=0, return_counts=True)[1]
    text = f"{left_out} of {train.classes} classes have no images of both kinds"
    notes = (text,) * bool(left_out) + note_choice([penalty], options.PENALTIES, answers)
    notes += note_unconverged(converged, options)
    result = mean_average_precision(scores, wanted)
    return ProbeResult(result, best, penalty, notes, chosen_on, interval)


class _Regressions:
    """A logistic regression for each class, all of which are fitted at once."""

    def __init__(self, samples: Samples, options: LinearProbeOptions) -> None:
        rows = samples.labels
        # The classes that some images show and others do not.
        self.classes = ((rows > 0).any(dim=0) & (rows == 0).any(dim=0)).nonzero().flatten()
        if not len(self.classes):
            raise DataError(
                f"{NAME}: no class has both images that show it and images that do not."
            )
        self._samples, self._options = samples, options
        self._known = (rows[:, self.classes] >= 0).sum(dim=0).double()
        shares = (rows[:, self.classes] > 0).sum(dim=0) / self._known
        self._curved = float((shares * (1 - shares)).mean())
        self._points = rows.new_zeros(len(self.classes), samples.width + 1, dtype=torch.float64)

    def fit(self, penalty: float) -> bool:
        """Fit from where the last fit has ended. Return whether every class has converged."""
        on_sum = self._options.PENALTY_ON == "sum"
        strength = penalty / self._known if on_sum else torch.full_like(self._known, penalty)
        losses = binary_losses(self._samples, self.classes, self._known, strength)
        about = curvature(self._samples, [float(strength.mean())] * len(strength), self._curved)
        found = minimise(losses, self._points, TOLERANCE, self._options.MAX_ITERATIONS, about)
        self._points = found.points
        return bool(found.converged.all())

    def scores(self, samples: Samples) -> Tensor:
        """Score the samples of all ranks."""
        classifier = Classifier(self._points[:, :-1].T, self._points[:, -1])
        scores = [classifier.scores(features) for features, _ in samples.pieces(ROWS)]
        found = torch.cat([self._points.new_zeros(0, len(self.classes)), *scores])
        return gather(found).rows if samples.over_ranks else found
