"""Few labelled images of each class, drawn several times, and the interval of the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from scipy import special  # type: ignore[import-untyped]
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluation.features import expect_one_class_each


def shots_of_each_class(labels: Tensor, shots: int, seed: int) -> Tensor:
    """The numbers of `shots` images of each class, or of all where there are fewer; ascending.

    The same images as in DINOv2's few-shot kNN. Images of label -1 are not drawn.
    """
    draw = torch.Generator().manual_seed(seed)
    labels = labels.cpu()
    some = []
    for each in labels[labels >= 0].unique():
        rows = (labels == each).nonzero().flatten()
        some.append(rows[torch.randperm(len(rows), generator=draw)[:shots]])
    return torch.cat(some).sort().values


def expect_classes(labels: Tensor) -> Tensor:
    """How many images each class has; DataError if there are not two classes."""
    expect_one_class_each(labels)
    counts: Tensor = labels[labels >= 0].unique(return_counts=True)[1]
    if len(counts) < 2:
        raise DataError(f"the {len(labels)} training labels are not of two classes or more.")
    return counts


def missing_shots(counts: Tensor, shots: Sequence[int]) -> tuple[str, ...]:
    """Notes on the classes that have fewer images."""
    few = {n: int((counts < n).sum()) for n in shots}
    return tuple(
        f"{n} shots: {some} of {len(counts)} classes have fewer images, all of which are used"
        for n, some in few.items()
        if some
    )


@dataclass(frozen=True)
class Interval:
    mean: float
    # Half the width of the 95 % confidence interval of the mean (Student's t); NaN of one value.
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        if len(values) < 2:
            return cls(fmean(values), math.nan)
        quantile = float(special.stdtrit(len(values) - 1, 0.975))
        return cls(fmean(values), quantile * stdev(values) / math.sqrt(len(values)))
