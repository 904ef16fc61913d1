"""Are images of another set recognised by the distance of their features?

The score of an image is its cosine with the K-th nearest training feature: Sun et al.,
Out-of-Distribution Detection with Deep Nearest Neighbors, 2022. It needs no labels.

AUROC    the chance that an image of the own set has a higher score than one of the other set
FPR@95   the share of the other set that is accepted by the threshold that accepts 95 % of the own
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import Rows, expect_finite
from sslengine.evaluate.knn import search
from sslengine.evaluate.outcome import Outcome, protocol

K = 50
ACCEPTED = 0.95


@protocol("Out-of-set detection")
def out_of_set(
    train: Rows, inside: Rows, outside: Rows, k: int = K, device: torch.device | None = None
) -> Outcome:
    """inside, outside: features of test images of the own set, and of another one."""
    for rows, split in ((train, "training"), (inside, "test"), (outside, "other")):
        if not len(rows):
            raise DataError(f"there are no {split} features.")
        expect_finite(rows, split)
    used = min(k, len(train))
    note = (f"k={k}: there are only {used} training images; the farthest of them counts",)
    own, other = (search(train, rows, used, device=device).similarities[:, -1].double()
                  for rows in (inside, outside))  # fmt: skip
    return Outcome(
        {"AUROC": 100 * auroc(own, other), "FPR@95": 100 * accepted(own, other)},
        note * (used < k),
        {"k": used, "inside": len(own), "outside": len(other)},
    )


def auroc(own: Tensor, other: Tensor) -> float:
    """The share of pairs of which the first has the higher score; equal ones count half."""
    ranked = other.sort().values
    lower = torch.searchsorted(ranked, own, right=False)
    not_higher = torch.searchsorted(ranked, own, right=True)
    return float((lower + not_higher).double().mean() / (2 * len(other)))


def accepted(own: Tensor, other: Tensor, share: float = ACCEPTED) -> float:
    """The share of `other` whose score reaches what `share` of `own` reaches."""
    threshold = own.sort(descending=True).values[math.ceil(share * len(own)) - 1]
    return float((other >= threshold).double().mean())
