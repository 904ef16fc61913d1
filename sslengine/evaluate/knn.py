"""k nearest neighbours, exactly and in bounded memory, and the class that they vote for.

    votes_c = sum over the k nearest with label c of exp((s_i - s_1) / sigma)

with s_i the similarity of the i-th nearest: the cosine, the dot product, or minus the
Euclidean distance. (Subtracting s_1 changes no result and keeps the exponential finite.)
Without sigma, every neighbour has one vote. Of classes with equal votes the lower number wins.

Training features are read once, in blocks, and compared with the queries, of which the k best so
far are kept. A group of similarities can hold a new neighbour only if its maximum is above the
query's k-th best so far: few similarities are sorted, and the search costs little more than the
product of the two matrices. One search serves any number of values of k.

Of equally similar training features the first ones are taken, and come first: the neighbours do
not depend on the sizes of the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.distributed.collectives import gather, sum_in_place
from sslengine.errors import ConfigError, DataError
from sslengine.evaluate.features import Rows, check_features, own_share
from sslengine.evaluate.options import Metric

NAME = "Nearest neighbours"
# Similarities of a block: 16 MB in single precision, which stay in the cache for the most part.
PIECE = 2**22
QUERIES, GROUP = 1024, 16
# Numbers of queries that are kept in memory: 256 MB.
KEPT = 2**26
# Queries whose votes are counted at once, for each class: 64 MB.
COUNTED = 2**23
# Behind all rows, where a query has fewer candidates than others.
NO_ROW = 2**32 - 1


class Neighbours(NamedTuple):
    """Queries x k, the most similar first."""

    similarities: Tensor
    rows: Tensor  # of the training features


# ---- votes


@torch.no_grad()
def knn_curve(
    train: Rows,
    labels: Tensor,
    test: Rows,
    wanted: Tensor,
    ks: Sequence[int],
    sigma: float | None = 0.1,
    metric: Metric = "cosine",
    top: Sequence[int] = (1,),
    device: torch.device | None = None,
    over_ranks: bool = False,
    answers: dict[int, Tensor] | None = None,
    own: bool = False,
) -> dict[int, list[float]]:
    """Return for each k the percentages of test features with their class among the `top` best.

    labels: class numbers. over_ranks: all ranks call it, with the same features, and each takes
    its share of the queries. answers: gets the class of each test feature by each k. own: see
    `search`.
    """
    check_features(NAME, train, labels, test, over_ranks)
    if labels.ndim != 1:
        raise DataError(f"{NAME}: labels are rows of indicators, which knn_scores takes.")
    among = own_share(len(test), over_ranks)
    found = search_k(train, test, max(ks), metric, device=device, among=among, own=own)
    some = wanted[among.start : among.stop]
    return score_votes(found, labels, some, ks, sigma, top, over_ranks, answers)


def knn_within(
    features: Rows, labels: Tensor, ks: Sequence[int], **how: Any
) -> dict[int, list[float]]:
    """Classify each feature by its neighbours among the others. how: of knn_curve."""
    return knn_curve(features, labels, features, labels, ks, **how, own=True)


@torch.no_grad()
def knn_scores(
    train: Rows,
    labels: Tensor,
    test: Rows,
    ks: Sequence[int],
    sigma: float | None = 0.1,
    metric: Metric = "cosine",
    device: torch.device | None = None,
    over_ranks: bool = False,
) -> dict[int, Tensor]:
    """Return for each k what count_votes gives, on the features' device; ranks as in knn_curve."""
    check_features(NAME, train, labels, test, over_ranks)
    among = own_share(len(test), over_ranks)
    found = search_k(train, test, max(ks), metric, device=device, among=among)
    scores = {k: count_votes(found, labels, k, sigma) for k in sorted({*ks})}
    return {k: gather(each).rows if over_ranks else each for k, each in scores.items()}


def search_k(train: Rows, test: Rows, k: int, metric: Metric = "cosine", **how: Any) -> Neighbours:
    """Search for as many neighbours as config.NEAREST_NEIGHBOR.TOPK says. how: of `search`."""
    if not 1 <= k <= len(train):
        raise ConfigError(
            f"{NAME}: config.NEAREST_NEIGHBOR.TOPK: expected 1 to {len(train)}, the number of "
            f"training features; got {k}."
        )
    return search(train, test, k, metric, **how)


def count_votes(found: Neighbours, labels: Tensor, k: int, sigma: float | None = 0.1) -> Tensor:
    """Return the votes of the k nearest: queries x classes.

    labels: class numbers; or rows of indicators, for the share of the votes for each class. A
    neighbour whose indicator is unknown (-1) has no vote on that class; without votes it is 0.
    """
    if labels.ndim == 1:
        (counted,) = _grow_votes(found, labels, int(labels.max()) + 1, [k], sigma)
        return counted
    labels = labels.to(found.rows.device)
    shown, known = (labels > 0).double(), (labels >= 0).double()
    scores = shown.new_zeros(len(found.rows), labels.shape[1])
    rows = max(1, COUNTED // (k * labels.shape[1]))
    near = (each[:, :k] for each in found)
    for some, neighbours, scored in zip(*(each.split(rows) for each in (*near, scores))):
        weights = _weigh(some, sigma)
        votes, of = (
            torch.einsum("nk,nkc->nc", weights, each[neighbours]) for each in (shown, known)
        )
        scored.copy_(torch.where(of > 0, votes / of, 0.0))
    return scores


def score_votes(
    found: Neighbours, labels: Tensor, wanted: Tensor, ks: Sequence[int], sigma: float | None,
    top: Sequence[int], over_ranks: bool = False, answers: dict[int, Tensor] | None = None,
) -> dict[int, list[float]]:  # fmt: skip
    """Return for each k the percentages of queries with their class among the best ones."""
    classes, order = int(labels.max()) + 1, sorted({*ks})
    labels, wanted = (each.to(found.rows.device) for each in (labels, wanted))
    # Of each k a row of hits, and the number of queries.
    hits = torch.zeros(len(order), len(top) + 1, dtype=torch.float64, device=labels.device)
    hits[:, -1] = len(wanted)
    best = {k: torch.empty_like(wanted) for k in order}
    for part in pieces_of(range(len(wanted)), max(1, COUNTED // classes)):
        some = slice(part.start, part.stop)
        near = Neighbours(found.similarities[some], found.rows[some])
        for k, row, counted in zip(order, hits, _grow_votes(near, labels, classes, order, sigma)):
            ranked = counted.argsort(dim=1, descending=True, stable=True)
            best[k][some] = ranked[:, 0]
            for place, count in enumerate(top):
                row[place] += _is_among(ranked, wanted[some], count).sum()
    if answers is not None:
        answers |= {k: gather(each).rows if over_ranks else each for k, each in best.items()}
    hits = sum_in_place(hits) if over_ranks else hits
    shares = dict(zip(order, (100.0 * hits[:, :-1] / hits[:, -1:]).tolist(), strict=True))
    return {k: shares[k] for k in ks}


def _grow_votes(
    found: Neighbours, labels: Tensor, classes: int, ks: Sequence[int], sigma: float | None
) -> Iterator[Tensor]:
    """Yield the votes for each k, in ascending order; the tensor is the same, and grows."""
    weights, chosen = _weigh(found.similarities, sigma), labels[found.rows]
    votes = weights.new_zeros(len(weights), classes)
    for before, k in zip((0, *ks), ks):
        votes.scatter_add_(1, chosen[:, before:k], weights[:, before:k])
        yield votes


def _is_among(ranked: Tensor, labels: Tensor, top: int) -> Tensor:
    return (ranked[:, :top] == labels.unsqueeze(1)).any(dim=1)


def _weigh(similarities: Tensor, sigma: float | None) -> Tensor:
    similarities = similarities.double()
    if sigma is None:
        return torch.ones_like(similarities)
    return ((similarities - similarities[:, :1]) / sigma).exp()


# ---- the search


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
) -> Neighbours:
    """Find the k most similar training features of each query.

    own: the queries are the training features, and no row is its own neighbour. among: the numbers
    of the queries that are asked for.
    """
    among = range(len(queries)) if among is None else among
    width = max(1, prepared(queries[0:1], metric, device).numel())
    parts = [
        _search(train, prepared(queries[some.start : some.stop], metric, device), k, metric, piece,
                some.start if own else None)
        for some in pieces_of(among, max(1, KEPT // width))
    ]  # fmt: skip
    return Neighbours(*(torch.cat(each) for each in zip(*parts)))


def nearest(features: Tensor, k: int) -> Tensor:
    """Find the k nearest others of each row by Euclidean distance: (N, k), nearest first."""
    features = features - features.mean(dim=0)  # distances are rounded less
    return search(features, features, k, "euclid", own=True).rows


def pieces_of(rows: range, size: int) -> list[range]:
    """Cut the rows into pieces; of no rows there is one empty piece."""
    return [rows[start : start + size] for start in range(0, max(1, len(rows)), size)]


def _search(
    train: Rows, queries: Tensor, k: int, metric: Metric, piece: int, own: int | None
) -> Neighbours:
    """Search for a part of the queries. own: the first one's training row, if they are the same."""
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
    """Keep the k best of those known and of a block's, whose rows come later; in no order."""
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
    """Return queries, ascending, columns and values of similarities above `least` that may be among
    the k best. A group is every n-th column: maxima of such groups are found fastest."""
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


def _first(values: Tensor, rows: Tensor, k: int, in_order: bool = False) -> Neighbours:
    """Take the k best, of equal ones those with the lowest rows."""
    if values.dtype == torch.float32:
        chosen = _ordered(values, rows).topk(k, dim=1, sorted=in_order).indices
    else:
        by_row = rows.argsort(dim=1)
        sorts = values.gather(1, by_row).argsort(dim=1, descending=True, stable=True)
        chosen = by_row.gather(1, sorts[:, :k])
    return Neighbours(values.gather(1, chosen), rows.gather(1, chosen))


def _ordered(values: Tensor, rows: Tensor) -> Tensor:
    """Make integers without ties: larger for a larger value, of equal values for a lower row."""
    bits = (values + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (rising.long() << 32) + (0xFFFFFFFF - rows)


def _leave_out(similar: Tensor, first: int) -> None:
    """Leave out the similarity of query i with itself, in column `first` + i."""
    queries = torch.arange(len(similar), device=similar.device)
    columns = queries + first
    inside = (columns >= 0) & (columns < similar.shape[1])
    similar[queries[inside], columns[inside]] = -torch.inf


def prepared(rows: Any, metric: Metric, device: torch.device | None = None) -> Tensor:
    """Make a matrix of at least single precision, normalised for the cosine."""
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
