"""Is a classifier as often right as it expects to be?

    ECE = sum over the bins of  (samples in the bin / samples) * |accuracy - mean confidence|

Guo et al., On Calibration of Modern Neural Networks, 2017. The confidence of a sample is the
largest of its probabilities; bins are of equal width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import Rows, expect_one_class_each
from sslengine.evaluate.linear import linear_probe
from sslengine.evaluate.options import LinearProbeOptions
from sslengine.evaluate.outcome import Outcome, protocol

BINS = 15


@protocol("Calibration")
@torch.no_grad()
def calibration(logits: Tensor, labels: Tensor, bins: int = BINS) -> Outcome:
    """logits: (samples, classes), as `Classifier.scores`. Samples of label -1 are left out."""
    known = labels >= 0
    logits, labels = logits[known].double(), labels[known]
    if logits.ndim != 2 or not logits.numel() or not logits.isfinite().all():
        raise DataError(
            f"expected finite logits (samples, classes) of samples with a label; got shape "
            f"{tuple(logits.shape)}."
        )
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
def calibration_of_probe(
    train: Rows,
    labels: Tensor,
    test: Rows,
    test_labels: Tensor,
    options: LinearProbeOptions | None = None,
    groups: Tensor | None = None,
) -> Outcome:
    """Of the linear probe. A class that TRAIN lacks is never answered."""
    expect_one_class_each(labels)
    probe = linear_probe(train, labels, test, test_labels, options, groups=groups)
    assert probe.fitted is not None
    found = calibration(probe.fitted.logits(test), probe.fitted.places(test_labels))
    return Outcome(found.metrics, probe.notes, {**probe.chosen, **found.details})
