"""The k nearest training features of each query, exactly, in bounded memory.

Training features are read once, in blocks, and compared with the queries, of which the k best so
far are kept. A group of similarities can hold a new neighbour only if its maximum is above the
query's k-th best so far: few similarities are sorted, and the search costs little more than the
product of the two matrices.

Of equally similar training features the first ones are taken, and come first: the neighbours do
not depend on the sizes of the blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.evaluate.features import Rows
from sslengine.evaluate.options import Metric

# Similarities of a block: 16 MB in single precision, which stay in the cache for the most part.
PIECE = 2**22
QUERIES, GROUP = 1024, 16
# Numbers of queries that are kept in memory: 256 MB.
KEPT = 2**26
# Behind all rows, where a query has fewer candidates than others.
NO_ROW = 2**32 - 1


class Found(NamedTuple):
    """Queries x k, the most similar first."""

    similarities: Tensor
    rows: Tensor  # of the training features


@torch.no_grad()
def search(
    train: Rows,
    queries: Rows,
    k: int,
    metric: Metric = "cosine",
    device: torch.device | None = None,
    own: bool = False,
    piece: int = PIECE,
    among: range | None = None,
) -> Found:
    """own: the queries are the training features, and no row is its own neighbour.

    among: of these queries alone.
    """
    among = range(len(queries)) if among is None else among
    width = max(1, prepared(queries[0:1], metric, device).numel())
    parts = [
        _search(train, prepared(queries[some.start : some.stop], metric, device), k, metric, piece,
                some.start if own else None)
        for some in pieces_of(among, max(1, KEPT // width))
    ]  # fmt: skip
    return Found(*(torch.cat(each) for each in zip(*parts)))


def nearest(features: Tensor, k: int) -> Tensor:
    """Of each row the k nearest others by Euclidean distance, (N, k), nearest first."""
    features = features - features.mean(dim=0)  # distances are rounded less
    return search(features, features, k, "euclid", own=True).rows


def pieces_of(rows: range, size: int) -> list[range]:
    """One empty piece of no rows."""
    return [rows[start : start + size] for start in range(0, max(1, len(rows)), size)]


def _search(
    train: Rows, queries: Tensor, k: int, metric: Metric, piece: int, own: int | None
) -> Found:
    """own: the training row of the first query, if they are the same features."""
    count = len(queries)
    best = queries.new_full((count, k), -torch.inf)
    rows = torch.full((count, k), len(train), device=queries.device)
    some = max(1, min(QUERIES, count))
    width = max(1, min(len(train), piece // some))
    for start in range(0, len(train), width):
        block = prepared(train[start : start + width], metric, queries.device).to(queries.dtype)
        for first in range(0, count, some):
            part = slice(first, min(first + some, count))
            similar = similarities(queries[part], block, metric)
            if own is not None:
                _leave_out(similar, own + first - start)
            best[part], rows[part] = _merged(best[part], rows[part], similar, start, k)
    return _first(best, rows, k, in_order=True)


def _merged(
    best: Tensor, rows: Tensor, similar: Tensor, start: int, k: int
) -> tuple[Tensor, Tensor]:
    """The k best of those known and of a block's, whose rows come later; in no order."""
    of, columns, values = _candidates(similar, best.amin(dim=1), k)
    if not len(of):
        return best, rows
    each = torch.bincount(of, minlength=len(best))
    place = torch.arange(len(of), device=of.device) - (each.cumsum(0) - each)[of]
    found = best.new_full((len(best), int(each.max())), -torch.inf)
    numbers = rows.new_full(found.shape, NO_ROW)
    found[of, place], numbers[of, place] = values, columns + start
    return _first(torch.cat([best, found], dim=1), torch.cat([rows, numbers], dim=1), k)


def _candidates(similar: Tensor, least: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, ascending, columns and values of similarities above `least` that may be among the
    k best. A group is every n-th column: maxima of such groups are found fastest."""
    count, width = similar.shape
    if width % GROUP:
        similar = F.pad(similar, (0, -width % GROUP), value=-torch.inf)
    grouped = similar.view(count, GROUP, -1)
    maxima, least = grouped.amax(dim=1), least.unsqueeze(1)
    above, enough = maxima > least, torch.full_like(least, -torch.inf)
    if maxima.shape[1] > k and int(above.sum()) > count * k:
        # As in the first block: k groups have values at least as good as their maxima.
        enough = maxima.topk(k, dim=1).values[:, -1:]
        above &= maxima >= enough
    of, group = above.nonzero(as_tuple=True)
    values = grouped[of, :, group]
    chosen, member = ((values > least[of]) & (values >= enough[of])).nonzero(as_tuple=True)
    return of[chosen], member * maxima.shape[1] + group[chosen], values[chosen, member]


def _first(values: Tensor, rows: Tensor, k: int, in_order: bool = False) -> Found:
    """The k best, of equal ones those with the lowest rows."""
    if values.dtype == torch.float32:
        chosen = _ordered(values, rows).topk(k, dim=1, sorted=in_order).indices
    else:
        by_row = rows.argsort(dim=1)
        sorts = values.gather(1, by_row).argsort(dim=1, descending=True, stable=True)
        chosen = by_row.gather(1, sorts[:, :k])
    return Found(values.gather(1, chosen), rows.gather(1, chosen))


def _ordered(values: Tensor, rows: Tensor) -> Tensor:
    """Integers without ties: larger for a larger value, and of equal values for a lower row."""
    bits = (values + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (rising.long() << 32) + (0xFFFFFFFF - rows)


def _leave_out(similar: Tensor, first: int) -> None:
    """The similarity of query i with itself, in column `first` + i."""
    queries = torch.arange(len(similar), device=similar.device)
    columns = queries + first
    inside = (columns >= 0) & (columns < similar.shape[1])
    similar[queries[inside], columns[inside]] = -torch.inf


def prepared(rows: Any, metric: Metric, device: torch.device | None = None) -> Tensor:
    """A matrix of at least single precision, normalised for the cosine."""
    # Distances are |a|^2 - 2ab + |b|^2, which cancels for close neighbours: use float64.
    least = torch.float64 if metric == "euclid" else torch.float32
    if isinstance(rows, np.ndarray):  # torch warns of a mapped file, which is not writable
        rows = torch.from_numpy(np.array(rows))
    features: Tensor = rows.to(device).flatten(1)
    features = features.to(torch.promote_types(features.dtype, least))
    return F.normalize(features) if metric == "cosine" else features


def similarities(queries: Tensor, train: Tensor, metric: Metric) -> Tensor:
    if metric == "euclid":
        return -torch.cdist(queries, train, compute_mode="use_mm_for_euclid_dist")
    return queries @ train.T
