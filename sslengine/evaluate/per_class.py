"""Answers class by class: what the accuracy hides where classes have unequal numbers of images.

    recall_c = right answers / images of c         precision_c = right answers / answers c
    F1_c     = 2 right answers / (images of c + answers c)

The balanced accuracy is the mean of the recalls of the classes that have images; macro F1 is the
mean of F1 over the classes that have images or are answered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import Rows, expect_one_class_each
from sslengine.evaluate.linear import linear_probe
from sslengine.evaluate.options import LinearProbeOptions
from sslengine.evaluate.outcome import Outcome, protocol


@dataclass(frozen=True)
class PerClass:
    """Of each class that has images or is answered, in the order of `numbers`."""

    numbers: Tensor
    images: Tensor
    answers: Tensor
    right: Tensor

    @classmethod
    def of(cls, answers: Tensor, labels: Tensor) -> PerClass:
        if not len(labels) or answers.shape != labels.shape:
            raise DataError(
                f"expected an answer for each image; got {len(answers)} for {len(labels)}."
            )
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
        """Number, images, answers, right answers."""
        columns = (self.numbers, self.images, self.answers, self.right)
        return torch.stack([each.long() for each in columns], dim=1).tolist()


@protocol("Classes")
@torch.no_grad()
def per_class(
    train: Rows,
    labels: Tensor,
    test: Rows,
    test_labels: Tensor,
    options: LinearProbeOptions | None = None,
    groups: Tensor | None = None,
) -> Outcome:
    """Of the linear probe."""
    expect_one_class_each(labels)
    probe = linear_probe(train, labels, test, test_labels, options, groups=groups)
    assert probe.fitted is not None
    found = PerClass.of(probe.fitted.answers(test), test_labels)
    return Outcome(found.metrics, probe.notes, {**probe.chosen, "classes": found.rows})
