"""At which ranks of a database the images are that a query should find.

The database is ranked by the cosine with the query. It is read in blocks, twice for each block of
queries: once for the similarities of what is wanted, once to count what is as similar. Nothing is
sorted but the wanted images, and memory does not grow with the database.

Of equally similar images the wanted ones come last: equal features find nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sslengine.distributed.collectives import gather
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import DataError
from sslengine.evaluate.features import BLOCK, Rows
from sslengine.evaluate.neighbours import prepared, similarities

# Queries that are compared with a block at a time: 16 MB of similarities.
QUERIES = 512
# Similarities of wanted images in memory at once: 64 MB.
WANTED = 2**24


# Of queries and images of the database, (queries, images): 1 wanted, 0 not wanted, -1 left out.
Relation = Callable[[slice, slice], Tensor]


@dataclass(frozen=True)
class Ranks:
    """Of a block of queries. The first rank is 0; images that are left out have no rank."""

    wanted: Tensor  # (queries, most wanted) ascending; what is beyond `counts` has no meaning
    counts: Tensor  # (queries,) of wanted images

    @property
    def valid(self) -> Tensor:
        places = torch.arange(self.wanted.shape[1], device=self.counts.device)
        return places < self.counts.unsqueeze(1)


# Of a block of queries the metrics, (queries, metrics).
Measure = Callable[[Ranks], Tensor]


@torch.no_grad()
def measure_queries(
    queries: Rows,
    database: Rows,
    relation: Relation,
    measure: Measure,
    device: torch.device | None = None,
    over_ranks: bool = False,
) -> Tensor:
    """(queries, metrics) in float64; NaN for a query that has no image to find.

    over_ranks: all ranks call it, with the same features, and each measures its share of queries.
    """
    _check(queries, database)
    ranks, own = (world_size(), rank()) if over_ranks else (1, 0)
    start, stop = (len(queries) * each // ranks for each in (own, own + 1))
    found = [
        measure(each).double().masked_fill(each.counts.eq(0).unsqueeze(1), torch.nan)
        for first in range(start, stop, QUERIES)
        for each in _ranks(queries, database, relation, first, min(first + QUERIES, stop), device)
    ]
    if not over_ranks:
        return torch.cat(found)
    if not found:  # fewer queries than ranks: measure one for the number of metrics
        found = [measure(Ranks(torch.zeros(1, 1), torch.ones(1))).double()[:0]]
    return gather(torch.cat(found)).rows


def _check(queries: Rows, database: Rows) -> None:
    if not len(queries) or not len(database):
        raise DataError(f"there are {len(queries)} queries and {len(database)} images to find.")
    if queries.shape[1:] != database.shape[1:]:
        raise DataError(
            f"features of queries have the shape {tuple(queries.shape[1:])}, those of the "
            f"database {tuple(database.shape[1:])}. Do they come from one model and one layer?"
        )


def _ranks(
    queries: Rows,
    database: Rows,
    relation: Relation,
    start: int,
    stop: int,
    device: torch.device | None,
) -> Iterator[Ranks]:
    every = slice(start, stop)
    counts = sum(relation(every, some).eq(1).sum(dim=1) for some in _blocks(database))
    assert isinstance(counts, Tensor)
    rows = max(1, WANTED // max(1, int(counts.max())))
    for first in range(start, stop, rows):
        some = slice(first, min(first + rows, stop))
        prepared = directions(queries[some], device)
        share = counts[first - start : some.stop - start].to(prepared.device)
        yield _ranks_of(prepared, database, lambda part, some=some: relation(some, part), share)  # type: ignore[misc]


def _ranks_of(
    queries: Tensor, database: Rows, relation: Callable[[slice], Tensor], counts: Tensor
) -> Ranks:
    wanted = queries.new_full((len(queries), max(1, int(counts.max()))), torch.inf)
    filled = torch.zeros_like(counts)
    for distances, related in _compared(queries, database, relation):
        hits = related == 1
        places = filled.unsqueeze(1) + hits.cumsum(dim=1) - 1
        wanted[hits.nonzero()[:, 0], places[hits]] = distances[hits]
        filled += hits.sum(dim=1)
    wanted = wanted.sort(dim=1).values
    # before[q, i]: images that are not wanted, farther than i wanted ones and no others
    before = torch.zeros(len(queries), wanted.shape[1] + 1, dtype=torch.long, device=queries.device)
    for distances, related in _compared(queries, database, relation):
        before.scatter_add_(1, torch.searchsorted(wanted, distances), (related == 0).long())
    places = torch.arange(wanted.shape[1], device=queries.device)
    return Ranks(before.cumsum(dim=1)[:, :-1] + places, counts)


def _compared(
    queries: Tensor, database: Rows, relation: Callable[[slice], Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of minus the cosine, and of the relation."""
    for some in _blocks(database):
        block = directions(database[some], queries.device)
        kind = torch.promote_types(queries.dtype, block.dtype)
        similar = similarities(queries.to(kind), block.to(kind), "cosine")
        yield -similar, relation(some).to(queries.device)


def _blocks(database: Rows) -> Iterator[slice]:
    for start in range(0, len(database), BLOCK):
        yield slice(start, min(start + BLOCK, len(database)))


def directions(rows: Tensor, device: torch.device | None = None) -> Tensor:
    """f / |f| as a matrix of at least single precision."""
    features = prepared(rows, "cosine", device)
    if not features.isfinite().all():
        raise DataError("some features are NaN or infinite.")
    return features


# ---- metrics of ranks


def average_precision(ranks: Ranks) -> Tensor:
    """The mean, over the wanted images, of the precision at their rank: (queries,)."""
    found = _counting(ranks) + 1
    return _mean(found / (ranks.wanted + 1), ranks)


def trapezoid_precision(ranks: Ranks) -> Tensor:
    """The area below precision over recall, by trapezoids, as for Oxford, Paris and Copydays."""
    found = _counting(ranks)
    before = torch.where(ranks.wanted == 0, 1.0, found / ranks.wanted.clamp(min=1))
    return _mean((before + (found + 1) / (ranks.wanted + 1)) / 2, ranks)


def recall_at(ranks: Ranks, k: int) -> Tensor:
    """1 if one of the first k images is wanted, or 0."""
    return ((ranks.wanted < k) & ranks.valid).any(dim=1).double()


def _counting(ranks: Ranks) -> Tensor:
    count = ranks.wanted.shape[1]
    return torch.arange(count, device=ranks.counts.device, dtype=torch.float64)


def _mean(values: Tensor, ranks: Ranks) -> Tensor:
    return values.masked_fill(~ranks.valid, 0.0).sum(dim=1) / ranks.counts.clamp(min=1)
