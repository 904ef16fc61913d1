"""Segmentation by frozen patches: by their nearest neighbours, and by a linear classifier.

A map of features has a vector for each patch; a mask has a class for each pixel. For the kNN each
pixel of a patch gets the class that most pixels at its place have in the nearest training patches.
The linear classifier is fitted to the most frequent class of each patch, and answers for all pixels
of a patch. Features are standardised by the training patches. Pixels without a class (IGNORED) do
not vote and do not count; patches that are mostly such are not trained on.

k and distance, and the penalty, are chosen by the mIoU on a tenth of the training images; then
all training images are used. mIoU is Jaccard's index, the mean over the classes that the masks
show: the same ones for all answers. Classes that are answered and not shown, which CAPI counts as
0, would reward the answer that names the background alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import expect_finite
from sslengine.evaluate.knn import search
from sslengine.evaluate.logistic import Classifier, Samples, fit_path, standardisation
from sslengine.evaluate.options import Metric
from sslengine.evaluate.outcome import Outcome, note_choice, protocol

IGNORED = (255,)
NEIGHBOURS = (1, 3, 10, 30)
METRICS: tuple[Metric, ...] = ("cosine", "euclid")
# Of the sum of the losses: 1 / C, as scikit-learn and CAPI count.
PENALTIES = tuple(1 / float(c) for c in np.logspace(-6, 5, 8))
FIXED = (10, METRICS[0]), 1.0  # where nothing can be held out: k and distance, penalty
HELD_OUT = 0.1
FINE = 4  # patches along a side, below which a map cannot tell much
AT_ONCE = 2**24  # pixels of neighbours
ITERATIONS = 200


@dataclass(frozen=True)
class Patches:
    """features: T x D. pixels: T x P, the classes of a patch's pixels. image: T, its number."""

    features: Tensor
    pixels: Tensor
    image: Tensor

    @classmethod
    def cut(cls, maps: Tensor, masks: Tensor) -> Patches:
        """maps: N x D x h x w. masks: N x (h p) x (w q)."""
        count, width, high, wide = maps.shape
        if len(masks) != count or masks.shape[1] % high or masks.shape[2] % wide:
            raise DataError(
                f"masks of shape {tuple(masks.shape)} for maps of shape {tuple(maps.shape)}: a "
                f"patch must have whole pixels."
            )
        parts = masks.reshape(count, high, masks.shape[1] // high, wide, -1).transpose(2, 3)
        features = maps.permute(0, 2, 3, 1).reshape(-1, width).float()
        image = torch.arange(count).repeat_interleave(high * wide)
        return cls(features, parts.reshape(count * high * wide, -1).long(), image)

    def __getitem__(self, rows: Tensor) -> Patches:
        return Patches(self.features[rows], self.pixels[rows], self.image[rows])

    def __len__(self) -> int:
        return len(self.features)

    def most_frequent(self, ignored: Sequence[int]) -> Tensor:
        """T: the class that most pixels of a patch have; -1 if that is an ignored one."""
        found = self.pixels.mode(dim=1).values
        return torch.where(torch.isin(found, torch.tensor(ignored)), -1, found)


class Confusion:
    """How often each class is answered for each class."""

    def __init__(self, classes: Tensor) -> None:
        """classes: numbers, ascending."""
        self.classes = classes
        self.table = torch.zeros(len(classes), len(classes), dtype=torch.int64)

    def add(self, answers: Tensor, wanted: Tensor) -> None:
        """Class numbers; pixels whose class is not among them are left out."""
        known = torch.isin(wanted, self.classes)
        places = [torch.searchsorted(self.classes, each[known]) for each in (wanted, answers)]
        count = len(self.classes)
        self.table += torch.bincount(places[0] * count + places[1], minlength=count**2).view(
            count, count
        )

    @property
    def miou(self) -> float:
        both = self.table.diag().double()
        shown = self.table.sum(1)
        return 100 * float((both / (self.table.sum(0) + shown - both))[shown > 0].mean())

    @property
    def accuracy(self) -> float:
        return 100 * float(self.table.diag().sum() / self.table.sum())

    def metrics(self, name: str = "") -> dict[str, float]:
        return {f"{name}mIoU": self.miou, f"{name}accuracy": self.accuracy}

    def constant(self, known: Tensor) -> dict[str, float]:
        """Score the answer that is always the class which most of the known pixels have."""
        known = known[torch.isin(known, self.classes)]
        best = torch.searchsorted(self.classes, known).bincount().argmax()
        found = Confusion(self.classes)
        found.table[:, best] = self.table.sum(1)
        return found.metrics("constant ")


def note_map(maps: Tensor) -> tuple[str, ...]:
    high, wide = maps.shape[2:]
    where = "config.EVALUATE.DENSE.LAYER names a finer layer, SIDE larger images"
    note = f"a map of {high} x {wide} patches is too coarse to tell much: {where}"
    return (note,) * (min(high, wide) < FINE)


@protocol("Dense")
@torch.no_grad()
def dense(
    train: Tensor,
    train_masks: Tensor,
    test: Tensor,
    test_masks: Tensor,
    ignored: Sequence[int] = IGNORED,
    device: torch.device | None = None,
) -> Outcome:
    """Maps N x D x h x w, and masks whose sides are multiples of those."""
    known, judged = Patches.cut(train, train_masks), Patches.cut(test, test_masks)
    expect_finite(known.features, "training")
    expect_finite(judged.features, "test")
    scale = standardisation(known.features)
    known, judged = (_scaled(each, scale) for each in (known, judged))
    known = known[known.most_frequent(ignored) >= 0]
    numbers = torch.cat([known.pixels.unique(), judged.pixels.unique()]).unique()
    classes = numbers[~torch.isin(numbers, torch.tensor(ignored))]
    if not len(known) or not torch.isin(judged.pixels, classes).any():
        raise DataError("no patch has a class: all pixels of the masks are ignored.")
    segment = _Segment(classes, ignored, device)
    metrics: dict[str, float] = {}
    held, chosen_on = _held_out(known)
    about: dict[str, Any] = {"patches": len(known), "classes": len(classes), "chosen_on": chosen_on}
    notes: tuple[str, ...] = ()
    if not len(held):
        notes = ("one training image: k, distance and penalty are fixed",)
    for name, settings, answers, fixed in (
        (
            "kNN",
            [(k, each) for each in METRICS for k in NEIGHBOURS],
            segment.answer_knn,
            FIXED[0],
        ),
        ("linear", PENALTIES, segment.answer_linearly, FIXED[1]),
    ):
        try:
            best, found = _chosen(known, judged, held, settings, answers, fixed)
        except DataError as reason:
            notes += (f"{name}: {reason}",)
            continue
        metrics |= found.metrics(f"{name} ")
        about[name] = best
        tried = [best] if name == "linear" and len(held) else []
        said = note_choice(tried, PENALTIES, found.table.sum(0))
        notes += tuple(f"{name}: {each}" for each in said)
    return Outcome(metrics | found.constant(known.pixels), notes + note_map(train), about)


Answers = Callable[[Patches, Patches, Sequence[Any]], Mapping[Any, Confusion]]


def _chosen(
    known: Patches,
    judged: Patches,
    held: Tensor,
    settings: Sequence[Any],
    answers: Answers,
    fixed: Any,
) -> tuple[Any, Confusion]:
    best = fixed
    if len(held):
        inside = torch.isin(known.image, held)
        tried = answers(known[~inside], known[inside], settings)
        best = max(tried, key=lambda each: tried[each].miou)  # of equal ones the first
    return best, answers(known, judged, [best])[best]


def _held_out(known: Patches) -> tuple[Tensor, str]:
    """The numbers of the images that are held out."""
    images = known.image.unique()
    count = max(1, round(HELD_OUT * len(images))) if len(images) > 1 else 0
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = f"{count} of {len(images)} training images" if count else "nothing: it is fixed"
    return images[order[:count]], chosen


def _scaled(patches: Patches, scale: tuple[Tensor, Tensor]) -> Patches:
    features = ((patches.features.double() - scale[0]) / scale[1]).float()
    return Patches(features, patches.pixels, patches.image)


@dataclass(frozen=True)
class _Segment:
    classes: Tensor
    ignored: Sequence[int]
    device: torch.device | None

    def answer_knn(
        self, known: Patches, judged: Patches, settings: Sequence[tuple[int, Metric]]
    ) -> dict[Any, Confusion]:
        found: dict[Any, Confusion] = {each: Confusion(self.classes) for each in settings}
        for metric in dict.fromkeys(each for _, each in settings):
            ks = [k for k, each in settings if each == metric]
            most = min(max(ks), len(known))
            rows = search(known.features, judged.features, most, metric, self.device).rows.cpu()
            for part in _parts(len(judged), most * known.pixels.shape[1]):
                near = known.pixels[rows[part]]
                for k in ks:
                    answers = self._vote(near[:, :k])
                    found[k, metric].add(answers.flatten(), judged.pixels[part].flatten())
        return found

    def _vote(self, near: Tensor) -> Tensor:
        """near: Q x k x P. Of equally frequent classes the one with the lowest number."""
        best = torch.full_like(near[:, 0], int(self.classes[0]))
        most = torch.zeros_like(best)
        for each in self.classes.tolist():
            count = (near == each).sum(dim=1)
            best = torch.where(count > most, each, best)
            most = torch.maximum(count, most)
        return best

    def answer_linearly(
        self, known: Patches, judged: Patches, settings: Sequence[float]
    ) -> dict[Any, Confusion]:
        numbers, labels = known.most_frequent(self.ignored).unique(return_inverse=True)
        if len(numbers) < 2:
            raise DataError(f"all training patches have class {int(numbers[0])}.")
        samples = Samples(known.features, labels, len(numbers), None, torch.float32)
        strengths = [each / len(known) for each in settings]
        fitted = fit_path(samples, strengths, tolerance=1e-4, max_iterations=ITERATIONS)
        return {
            each: self._confuse(classifier, numbers, judged)
            for each, classifier in zip(settings, fitted.classifiers, strict=True)
        }

    def _confuse(self, classifier: Classifier, numbers: Tensor, judged: Patches) -> Confusion:
        found = Confusion(self.classes)
        answers = numbers[classifier.scores(judged.features).argmax(dim=1)]
        found.add(answers.unsqueeze(1).expand_as(judged.pixels).flatten(), judged.pixels.flatten())
        return found


def _parts(count: int, each: int) -> Iterator[slice]:
    size = max(1, AT_ONCE // each)
    return (slice(start, start + size) for start in range(0, count, size))
