"""Copy detection, as on Copydays: a changed image finds its original among others.

Douze et al., Evaluation of GIST descriptors for web-scale image search, 2009. The average precision
is that of the first TOP images. Features are usually the class token and `gem` of the patches,
whitened: see descriptors.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import Rows
from sslengine.evaluate.outcome import Outcome, protocol
from sslengine.evaluate.retrieval.ranks import (
    Ranks,
    measure_queries,
    recall_at,
    trapezoid_precision,
)

TOP = 20


@protocol("Copy detection")
def copy_detection(
    queries: Rows,
    database: Rows,
    originals: Sequence[int] | Tensor,
    device: torch.device | None = None,
    over_ranks: bool = False,
) -> Outcome:
    """originals: for each query the number of its image in the database; -1 if it has none."""
    wanted = torch.as_tensor(originals)
    if wanted.shape != (len(queries),) or not (wanted < len(database)).all():
        raise DataError(
            f"expected the number of an original, below {len(database)}, for each of the "
            f"{len(queries)} queries; got shape {tuple(wanted.shape)}, up to {int(wanted.max())}."
        )
    numbers = torch.arange(len(database))

    def relation(some: slice, part: slice) -> Tensor:
        return wanted[some].unsqueeze(1).eq(numbers[part]).byte()

    found = measure_queries(queries, database, relation, _measure, device, over_ranks)
    if found.isnan().all():
        raise DataError("no query has an original.")
    without = int(found[:, 0].isnan().sum())
    notes = (f"{without} of {len(found)} queries have no original: left out",) * bool(without)
    mean, first = (100 * found.nanmean(dim=0)).tolist()
    details = {"queries": len(found) - without, "images": len(database)}
    return Outcome({"mAP": mean, "R@1": first}, notes, details)


def _measure(ranks: Ranks) -> Tensor:
    found = recall_at(ranks, TOP)  # of the single image that is wanted
    return torch.stack([trapezoid_precision(ranks) * found, recall_at(ranks, 1)], dim=1)
