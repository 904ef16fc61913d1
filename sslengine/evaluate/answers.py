"""What the linear probe answers: class by class, and as often right as it expects to be?

    recall_c = right answers / images of c         precision_c = right answers / answers c
    F1_c     = 2 right answers / (images of c + answers c)

The balanced accuracy is the mean of the recalls of the classes that have images; macro F1 is the
mean of F1 over the classes that have images or are answered.

    ECE = sum over the bins of  (samples in the bin / samples) * |accuracy - mean confidence|

Guo et al., On Calibration of Modern Neural Networks, 2017. The confidence of a sample is the
largest of its probabilities; bins are of equal width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import SEVERAL, Rows
from sslengine.evaluate.linear import Fitted, ProbeResult
from sslengine.evaluate.outcome import Outcome, protocol

BINS = 15
# A linear probe; why there is none; None: the images have no labels.
Probed = ProbeResult | str | None
NO_LABELS = "the images have no labels."


@dataclass(frozen=True)
class PerClass:
    """Counts of each class that has images or is answered, in the order of `numbers`."""

    numbers: Tensor
    images: Tensor
    answers: Tensor
    right: Tensor

    @classmethod
    def count(cls, answers: Tensor, labels: Tensor) -> PerClass:
        numbers, places = torch.cat([labels, answers]).unique(return_inverse=True)
        own, answered = places.split(len(labels))
        counts = (torch.bincount(each, minlength=len(numbers)).double()
                  for each in (own, answered, own[own == answered]))  # fmt: skip
        return cls(numbers, *counts)

    @property
    def metrics(self) -> dict[str, float]:
        recalls = (self.right / self.images)[self.images > 0]
        values = {
            "accuracy": self.right.sum() / self.images.sum(),
            "balanced accuracy": recalls.mean(),
            "macro F1": (2 * self.right / (self.images + self.answers)).mean(),
            "worst class": recalls.min(),
        }
        return {name: 100 * float(value) for name, value in values.items()}

    @property
    def rows(self) -> list[list[float]]:
        """Number, images, answers, right answers of each class."""
        columns = (self.numbers, self.images, self.answers, self.right)
        return torch.stack([each.long() for each in columns], dim=1).tolist()


def expect_probe(probe: Probed) -> tuple[ProbeResult, Fitted]:
    """Return the probe and its classifier; DataError: why there is none."""
    if isinstance(probe, ProbeResult) and probe.fitted is not None:
        return probe, probe.fitted
    raise DataError(SEVERAL if isinstance(probe, ProbeResult) else probe or NO_LABELS)


@protocol("Classes")
@torch.no_grad()
def per_class(probe: Probed, test: Rows, wanted: Tensor) -> Outcome:
    """Score the answers of the linear probe to the test features."""
    found, fitted = expect_probe(probe)
    counts = PerClass.count(fitted.answers(test), wanted)
    return Outcome(counts.metrics, found.notes, {**found.chosen, "classes": counts.rows})


@protocol("Calibration")
@torch.no_grad()
def calibration(logits: Tensor, labels: Tensor, bins: int = BINS) -> Outcome:
    """Compare logits (samples, classes) with labels; samples of label -1 are left out."""
    known = labels >= 0
    logits, labels = logits[known].double(), labels[known]
    if not logits.numel() or not logits.isfinite().all():
        raise DataError("expected finite logits of samples with a label.")
    confidence, best = logits.softmax(dim=1).max(dim=1)
    right = (best == labels).double()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    sums = logits.new_zeros(3, bins)
    for row, values in zip(sums, (torch.ones_like(right), right, confidence)):
        row.scatter_add_(0, place, values)
    count, accuracy, expected = sums
    error = (accuracy - expected).abs().sum() / len(labels)
    metrics = {"ECE": error, "accuracy": right.mean(), "confidence": confidence.mean()}
    table = torch.stack([count, accuracy / count, expected / count]).T
    return Outcome(
        {name: 100 * float(value) for name, value in metrics.items()},
        # A row for each bin with samples: their number, accuracy and mean confidence.
        details={"samples": len(labels), "bins": table[count > 0].tolist()},
    )


@protocol("Calibration")
def calibrate_probe(probe: Probed, test: Rows, wanted: Tensor) -> Outcome:
    """Judge the linear probe's logits of the test features. A class that it lacks is no answer."""
    found, fitted = expect_probe(probe)
    measured = calibration(fitted.logits(test), fitted.places(wanted))
    return Outcome(measured.metrics, found.notes, {**found.chosen, **measured.details})
