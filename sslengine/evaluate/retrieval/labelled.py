"""Retrieval among the images of a set: by class, or, without labels, by image.

retrieval        each image is a query for the other images of its class, or, where labels are rows
                 of indicators, for those that share a class with it; a class that is unknown of
                 one of them is not shared
view_retrieval   an augmented view of each image is a query for another view of the same image:
                 low if features collapse, or if they follow the augmentation
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import BLOCK, Rows, rows_at
from sslengine.evaluate.outcome import Outcome, protocol
from sslengine.evaluate.retrieval.ranks import (
    Ranks,
    Relation,
    average_precision,
    directions,
    measure_queries,
    recall_at,
)

# Queries of a large set: a random sample of it.
QUERIES = 10_000
RECALLS = (1, 5, 10)


@protocol("Retrieval")
def retrieval(
    features: Rows,
    labels: Tensor,
    queries: int = QUERIES,
    device: torch.device | None = None,
    over_ranks: bool = False,
) -> Outcome:
    """mAP and R@k: the share of queries with an image of their class among the first k."""
    labels = labels.cpu()
    _expect_kinds(labels)
    _expect_directions(features)
    known = (labels >= 0).any(dim=1) if labels.ndim > 1 else labels >= 0
    draw = torch.Generator().manual_seed(0)
    chosen = known.nonzero().flatten()
    chosen = chosen[torch.randperm(len(chosen), generator=draw)[:queries].sort().values]
    relation = _same_class(labels, chosen, known)
    found = measure_queries(
        rows_at(features, chosen), features, relation, _measure, device, over_ranks
    )
    alone = int(found[:, 0].isnan().sum())
    notes = _unknown(labels, known)
    notes += (f"{alone} of {len(found)} queries have no other image of their class",) * bool(alone)
    return _outcome(found, ("mAP", "R"), notes, {"queries": len(found), "images": int(known.sum())})


@protocol("View retrieval")
def view_retrieval(
    views: Tensor, device: torch.device | None = None, over_ranks: bool = False
) -> Outcome:
    """Of views (images, 2 or more, D) the first are queries, the second the database.

    MRR: the mean of 1 / rank of the other view. R@1 of features without meaning is 1 / images.
    """
    if views.ndim < 3 or views.shape[1] < 2 or len(views) < 2:
        raise DataError(
            f"expected 2 views of 2 images or more, (images, views, D); got {tuple(views.shape)}."
        )
    queries, database = views[:, 0], views[:, 1]
    _expect_directions(database)
    numbers = torch.arange(len(views))

    def same_image(some: slice, part: slice) -> Tensor:
        return numbers[some].unsqueeze(1).eq(numbers[part]).byte()

    found = measure_queries(queries, database, same_image, _measure, device, over_ranks)
    return _outcome(found, ("MRR", "view R"), (), {"images": len(views)})


def _expect_kinds(labels: Tensor) -> None:
    if labels.ndim == 1 and len(labels[labels >= 0].unique()) < 2:
        raise DataError(f"the {len(labels)} images are not of two classes or more.")


def _unknown(labels: Tensor, known: Tensor) -> tuple[str, ...]:
    """Notes on the images without any label, and on those of whose classes some are unknown."""
    without = int((~known).sum())
    notes = (f"{without} of {len(labels)} images have no label: left out",) * bool(without)
    partly = int((labels[known] < 0).any(dim=1).sum()) if labels.ndim > 1 else 0
    text = f"of {partly} of {len(labels)} images some classes are unknown: they count as not shared"
    return notes + (text,) * bool(partly)


def _expect_directions(features: Rows) -> None:
    """Stops at the first block with two directions."""
    first = directions(features[0:1])
    for start in range(0, len(features), BLOCK):
        if (directions(features[start : start + BLOCK]) - first).abs().max() > 1e-5:
            return
    raise DataError("all features have the same direction: no image is nearer than another.")


def _same_class(labels: Tensor, queries: Tensor, known: Tensor) -> Relation:
    numbers = torch.arange(len(labels))

    def relation(some: slice, part: slice) -> Tensor:
        own, others = labels[queries[some]], labels[part]
        if labels.ndim > 1:
            related = ((own > 0).float() @ (others > 0).float().T > 0).to(torch.int8)
        else:
            related = own.unsqueeze(1).eq(others).to(torch.int8)
        left_out = queries[some].unsqueeze(1).eq(numbers[part]) | ~known[part]
        return related.masked_fill(left_out, -1)

    return relation


def _measure(ranks: Ranks) -> Tensor:
    return torch.stack([average_precision(ranks), *(recall_at(ranks, k) for k in RECALLS)], dim=1)


def _outcome(
    found: Tensor, names: tuple[str, str], notes: tuple[str, ...], details: dict[str, int]
) -> Outcome:
    if found[:, 0].isnan().all():
        raise DataError("no query has an image to find.")
    means = (100 * found.nanmean(dim=0)).tolist()
    labels = [names[0], *(f"{names[1]}@{k}" for k in RECALLS)]
    return Outcome(dict(zip(labels, means, strict=True)), notes, details)
