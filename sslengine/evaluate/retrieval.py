"""Images that are found by an image: at which ranks of a database, and how good that is.

retrieval        each image of a set is a query for the other images of its class, or, where labels
                 are rows of indicators, for those that share a class with it; a class that is
                 unknown of one of them is not shared
copy_detection   a changed image finds its original among others, as on Copydays (Douze et al.,
                 Evaluation of GIST descriptors for web-scale image search, 2009)

The database is ranked by the cosine with the query. It is read in blocks, twice for each block of
queries: once for the similarities of what is wanted, once to count what is as similar. Nothing is
sorted but the wanted images, and memory does not grow with the database. Of equally similar images
the wanted ones come last: equal features find nothing.

Copies and landmarks are compared by descriptors: usually the class token and `gem` of the patches,
whitened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import BLOCK, Rows, blocks, rows_at
from sslengine.evaluate.knn import prepared, similarities
from sslengine.evaluate.outcome import Outcome, protocol

# Queries of a large set: a random sample of it.
QUERIES = 10_000
RECALLS = (1, 5, 10)
# Images of which copy_detection measures the average precision, the first ones.
TOP = 20
# Queries that are compared with a block at a time: 16 MB of similarities.
AT_ONCE = 512
# Similarities of wanted images in memory at once: 64 MB.
WANTED = 2**24


@protocol("Retrieval")
def retrieval(
    features: Rows,
    labels: Tensor,
    queries: int = QUERIES,
) -> Outcome:
    """Score mAP and R@k: the share of queries with an image of their class among the first k."""
    labels = labels.cpu()
    if labels.ndim == 1 and len(labels[labels >= 0].unique()) < 2:
        raise DataError(f"the {len(labels)} images are not of two classes or more.")
    _expect_directions(features)
    known = (labels >= 0).any(dim=1) if labels.ndim > 1 else labels >= 0
    draw = torch.Generator().manual_seed(0)
    chosen = known.nonzero().flatten()
    chosen = chosen[torch.randperm(len(chosen), generator=draw)[:queries].sort().values]
    relation = _same_class(labels, chosen, known)
    found = measure_queries(rows_at(features, chosen), features, relation, _measure_class)
    alone = int(found[:, 0].isnan().sum())
    notes = _note_unknown(labels, known)
    notes += (f"{alone} of {len(found)} queries have no other image of their class",) * bool(alone)
    if alone == len(found):
        raise DataError("no query has an image to find.")
    names = ["mAP", *(f"R@{k}" for k in RECALLS)]
    metrics = dict(zip(names, (100 * found.nanmean(dim=0)).tolist(), strict=True))
    return Outcome(metrics, notes, {"queries": len(found), "images": int(known.sum())})


def _note_unknown(labels: Tensor, known: Tensor) -> tuple[str, ...]:
    """Note images without any label, and those of whose classes some are unknown."""
    without = int((~known).sum())
    notes = (f"{without} of {len(labels)} images have no label: left out",) * bool(without)
    partly = int((labels[known] < 0).any(dim=1).sum()) if labels.ndim > 1 else 0
    text = f"of {partly} of {len(labels)} images some classes are unknown: they count as not shared"
    return notes + (text,) * bool(partly)


def _expect_directions(features: Rows) -> None:
    """Stop at the first block with two directions."""
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


def _measure_class(ranks: Ranks) -> Tensor:
    return torch.stack([average_precision(ranks), *(recall_at(ranks, k) for k in RECALLS)], dim=1)


@protocol("Copy detection")
def copy_detection(
    queries: Rows,
    database: Rows,
    originals: Sequence[int] | Tensor,
    device: torch.device | None = None,
) -> Outcome:
    """Score mAP of the first TOP images, and R@1.

    originals: for each query the number of its image in the database; -1 if it has none.
    """
    wanted = torch.as_tensor(originals)
    if wanted.shape != (len(queries),) or not (wanted < len(database)).all():
        raise DataError(
            f"expected the number of an original, below {len(database)}, for each of the "
            f"{len(queries)} queries; got shape {tuple(wanted.shape)}, up to {int(wanted.max())}."
        )
    numbers = torch.arange(len(database))

    def relation(some: slice, part: slice) -> Tensor:
        return wanted[some].unsqueeze(1).eq(numbers[part]).byte()

    found = measure_queries(queries, database, relation, _measure_copy, device)
    if found.isnan().all():
        raise DataError("no query has an original.")
    without = int(found[:, 0].isnan().sum())
    notes = (f"{without} of {len(found)} queries have no original: left out",) * bool(without)
    mean, first = (100 * found.nanmean(dim=0)).tolist()
    details = {"queries": len(found) - without, "images": len(database)}
    return Outcome({"mAP": mean, "R@1": first}, notes, details)


def _measure_copy(ranks: Ranks) -> Tensor:
    found = recall_at(ranks, TOP)  # of the single image that is wanted
    return torch.stack([trapezoid_precision(ranks) * found, recall_at(ranks, 1)], dim=1)


# ---- ranks


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
) -> Tensor:
    """Return (queries, metrics) in float64; NaN for a query that has no image to find."""
    if not len(queries) or not len(database):
        raise DataError(f"there are {len(queries)} queries and {len(database)} images to find.")
    found = []
    for some in _slices(len(queries), AT_ONCE):
        counts = torch.stack([relation(some, part).eq(1).sum(dim=1)
                              for part in _slices(len(database), BLOCK)]).sum(dim=0)  # fmt: skip
        rows = max(1, WANTED // max(1, int(counts.max())))
        for few in _slices(len(counts), rows):
            part = slice(some.start + few.start, some.start + few.stop)
            rows_of = directions(queries[part], device)
            ranks = _ranks_of(rows_of, database, partial(relation, part), counts[few])
            values = measure(ranks).double()
            found.append(values.masked_fill(ranks.counts.eq(0).unsqueeze(1), torch.nan))
    return torch.cat(found)


def _slices(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _ranks_of(
    queries: Tensor, database: Rows, relation: Callable[[slice], Tensor], counts: Tensor
) -> Ranks:
    counts = counts.to(queries.device)
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
    """Yield blocks of minus the cosine, and of the relation."""
    for some in _slices(len(database), BLOCK):
        block = directions(database[some], queries.device)
        kind = torch.promote_types(queries.dtype, block.dtype)
        similar = similarities(queries.to(kind), block.to(kind), "cosine")
        yield -similar, relation(some).to(queries.device)


def directions(rows: Tensor, device: torch.device | None = None) -> Tensor:
    """Return f / |f| as a matrix of at least single precision."""
    features = prepared(rows, "cosine", device)
    if not features.isfinite().all():
        raise DataError("some features are NaN or infinite.")
    return features


# ---- metrics of ranks


def average_precision(ranks: Ranks) -> Tensor:
    """Return the mean, over the wanted images, of the precision at their rank: (queries,)."""
    found = _counting(ranks) + 1
    return _mean(found / (ranks.wanted + 1), ranks)


def trapezoid_precision(ranks: Ranks) -> Tensor:
    """Return the area below precision over recall by trapezoids, as of Oxford, Paris, Copydays."""
    found = _counting(ranks)
    before = torch.where(ranks.wanted == 0, 1.0, found / ranks.wanted.clamp(min=1))
    return _mean((before + (found + 1) / (ranks.wanted + 1)) / 2, ranks)


def recall_at(ranks: Ranks, k: int) -> Tensor:
    """Return 1 if one of the first k images is wanted, or 0."""
    return ((ranks.wanted < k) & ranks.valid).any(dim=1).double()


def _counting(ranks: Ranks) -> Tensor:
    count = ranks.wanted.shape[1]
    return torch.arange(count, device=ranks.counts.device, dtype=torch.float64)


def _mean(values: Tensor, ranks: Ranks) -> Tensor:
    return values.masked_fill(~ranks.valid, 0.0).sum(dim=1) / ranks.counts.clamp(min=1)


# ---- descriptors


def gem(tokens: Tensor, p: float = 4.0, eps: float = 1e-6) -> Tensor:
    """Compute the generalised mean over tokens (B, T, D): (mean of max(x, eps)^p)^(1/p).

    Radenovic et al., Fine-tuning CNN Image Retrieval with No Human Annotation, 2018.
    """
    return tokens.clamp(min=eps).pow(p).mean(dim=1).pow(1 / p)


@dataclass(frozen=True)
class Whitening:
    """The projection on principal components, each divided by its standard deviation."""

    mean: Tensor
    projection: Tensor  # (D, components)

    @classmethod
    def fit(cls, features: Rows, components: int | None = None) -> Whitening:
        """Fit it to other images than queries and database; drop directions without variance."""
        mean, covariance = _moments(features)
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values.flip(0)[:components], vectors.flip(1)[:, :components]
        kept = values > values[0].clamp(min=1e-30) * len(values) * torch.finfo(values.dtype).eps
        if not kept.any():
            raise DataError("Whitening: all features are equal.")
        return cls(mean, vectors[:, kept] / values[kept].sqrt())

    def __call__(self, features: Tensor) -> Tensor:
        kind, device = features.dtype, features.device
        centred = features.flatten(1).double() - self.mean.to(device)
        return (centred @ self.projection.to(device)).to(kind)


def _moments(features: Rows) -> tuple[Tensor, Tensor]:
    """Compute the mean, and the covariance about it, in two passes."""
    if len(features) < 2:
        raise DataError(f"Whitening: needs 2 features or more, got {len(features)}.")
    mean = sum(block.double().sum(dim=0) for block in blocks(features)) / len(features)
    assert isinstance(mean, Tensor)
    centred = (block.double() - mean for block in blocks(features))
    covariance = sum(block.T @ block for block in centred) / len(features)
    assert isinstance(covariance, Tensor)
    return mean, covariance


def rows_for_cosine(queries: Tensor, database: Tensor) -> tuple[Tensor, Tensor]:
    """Make rows whose cosines have the order of the Euclidean distances.

    q . d - |d|^2 / 2 falls as the distance |q - d| grows. It is the product of (q, 1, 0) and
    (d, -|d|^2 / 2, r), with an r that makes all rows of the database equally long.
    """
    halves = database.square().sum(dim=1, keepdim=True) / 2
    rows = torch.cat([database, -halves], dim=1)
    lengths = rows.square().sum(dim=1, keepdim=True)
    rest = (lengths.max() - lengths).clamp(min=0).sqrt()
    one = torch.ones_like(queries[:, :1])
    return torch.cat([queries, one, 0 * one], dim=1), torch.cat([rows, rest], dim=1)
