"""Buildings of Oxford and Paris: Radenovic et al., Revisiting Oxford and Paris, 2018.

Each query has images that show its building easily or hardly, and junk, which may show it:

    level    wanted         left out of the ranking
    easy     easy           junk, hard
    medium   easy, hard     junk
    hard     hard           junk, easy

For the first Oxford5k and Paris6k, `easy` are the images called ok, and `levels=("easy",)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import Rows
from sslengine.evaluate.outcome import Outcome, protocol
from sslengine.evaluate.retrieval import (
    Ranks,
    Relation,
    measure_queries,
    trapezoid_precision,
)

LEVELS = ("easy", "medium", "hard")
PRECISIONS = (1, 5, 10)


@dataclass(frozen=True)
class Truth:
    """Of one query: numbers of images of the database."""

    easy: Sequence[int] = ()
    hard: Sequence[int] = ()
    junk: Sequence[int] = ()

    def at(self, level: str) -> tuple[list[int], list[int]]:
        """Wanted, and left out."""
        easy, hard, junk = map(list, (self.easy, self.hard, self.junk))
        if level == "medium":
            return easy + hard, junk
        return (easy, junk + hard) if level == "easy" else (hard, junk + easy)


@protocol("Landmarks")
def landmarks(
    queries: Rows,
    database: Rows,
    truth: Sequence[Truth],
    levels: Sequence[str] = LEVELS,
    device: torch.device | None = None,
) -> Outcome:
    """mAP and mP@k for each level, over the queries that have an image to find."""
    if len(truth) != len(queries):
        raise DataError(f"{len(queries)} queries, but the truth of {len(truth)}.")
    metrics: dict[str, float] = {}
    notes: list[str] = []
    for level in levels:
        relation = _relation([each.at(level) for each in truth], len(database))
        found = measure_queries(queries, database, relation, _measure, device)
        without = int(found[:, 0].isnan().sum())
        if without:
            notes.append(f"{level}: {without} of {len(found)} queries have no image to find")
        if without < len(found):
            names = ["mAP", *(f"mP@{k}" for k in PRECISIONS)]
            means = (100 * found.nanmean(dim=0)).tolist()
            metrics |= {f"{level} {name}": value for name, value in zip(names, means, strict=True)}
    return Outcome(metrics, tuple(notes), {"queries": len(queries), "images": len(database)})


def _relation(truth: Sequence[tuple[list[int], list[int]]], images: int) -> Relation:
    known = torch.zeros(len(truth), images, dtype=torch.int8)
    for row, (wanted, left_out) in zip(known, truth, strict=True):
        named = [*wanted, *left_out]
        if named and not 0 <= min(named) <= max(named) < images:
            raise DataError(f"the truth names image {max(named)} of a database of {images}.")
        row[left_out] = -1
        row[wanted] = 1
    return lambda some, part: known[some, part]


def _measure(ranks: Ranks) -> Tensor:
    precisions = [_precision_at(ranks, k) for k in PRECISIONS]
    return torch.stack([trapezoid_precision(ranks), *precisions], dim=1)


def _precision_at(ranks: Ranks, k: int) -> Tensor:
    """Return the precision of the first k images, or of those up to the last wanted one."""
    last = ranks.wanted.masked_fill(~ranks.valid, -1).amax(dim=1) + 1
    first = last.clamp(1, k)
    return (ranks.valid & (ranks.wanted < first.unsqueeze(1))).sum(dim=1) / first.double()
