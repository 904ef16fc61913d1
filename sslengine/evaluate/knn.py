"""k nearest neighbours: the most similar training features vote for a class.

    votes_c = sum over the k nearest with label c of exp((s_i - s_1) / sigma)

with s_i the similarity of the i-th nearest: the cosine, the dot product, or minus the
Euclidean distance. (Subtracting s_1 changes no result and keeps the exponential finite.)
Without sigma, every neighbour has one vote.

The result is exact. Of equally similar training features the first ones vote; of classes
with equal votes the lower number wins. One search serves any number of values of k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.collectives import gather, sum_in_place
from sslengine.errors import ConfigError, DataError
from sslengine.evaluate.features import Rows, check_features, own_share
from sslengine.evaluate.neighbours import PIECE, Found, pieces_of, search
from sslengine.evaluate.options import Metric

NAME = "Nearest neighbours"
# Queries whose votes are counted at once, for each class: 64 MB.
COUNTED = 2**23


@torch.no_grad()
def knn_votes(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    k: int,
    sigma: float | None = 0.1,
    metric: Metric = "cosine",
    piece: int = PIECE,
) -> Tensor:
    """The votes (test features x classes), on the features' device.

    Features are N x anything, labels N class numbers.
    """
    _expect_numbers(train_features, train_labels, test_features)
    found = knn_search(train_features, test_features, k, metric, piece=piece)
    return votes(found, train_labels, k, sigma)


def votes(found: Found, labels: Tensor, k: int, sigma: float | None = 0.1) -> Tensor:
    """Of the k nearest: queries x classes."""
    (counted,) = _votes(found, labels, int(labels.max()) + 1, [k], sigma)
    return counted


def _expect_numbers(train: Rows, labels: Tensor, test: Rows, over_ranks: bool = False) -> None:
    check_features(NAME, train, labels, test, over_ranks)
    if labels.ndim != 1:
        raise DataError(f"{NAME}: labels are rows of indicators, which knn_scores takes.")


@torch.no_grad()
def knn_curve(
    train_features: Rows,
    train_labels: Tensor,
    test_features: Rows,
    test_labels: Tensor,
    ks: Sequence[int],
    sigma: float | None = 0.1,
    metric: Metric = "cosine",
    top: Sequence[int] = (1,),
    device: torch.device | None = None,
    over_ranks: bool = False,
    answers: dict[int, Tensor] | None = None,
) -> dict[int, list[float]]:
    """For each k the percentages of test features with their class among the `top` best ones.

    over_ranks: all ranks call it, with the same features, and each takes its share of the queries.
    answers: gets the class of each test feature by each k.
    """
    _expect_numbers(train_features, train_labels, test_features, over_ranks)
    among = own_share(len(test_features), over_ranks)
    found = knn_search(train_features, test_features, max(ks), metric, device=device, among=among)
    wanted = test_labels[among.start : among.stop]
    return curve(found, train_labels, wanted, ks, sigma, top, over_ranks, answers)


@torch.no_grad()
def knn_within(
    features: Tensor,
    labels: Tensor,
    ks: Sequence[int],
    sigma: float | None = 0.1,
    metric: Metric = "cosine",
) -> dict[int, float]:
    """For each k the percentage of features that their neighbours among the others classify."""
    check_features(NAME, features, labels, features)
    found = search(features, features, max(ks), metric, own=True)
    return {k: of[0] for k, of in curve(found, labels, labels, ks, sigma, (1,)).items()}


def curve(
    found: Found, labels: Tensor, wanted: Tensor, ks: Sequence[int], sigma: float | None,
    top: Sequence[int], over_ranks: bool = False, answers: dict[int, Tensor] | None = None,
) -> dict[int, list[float]]:  # fmt: skip
    """For each k the percentages of queries with their class among the best ones."""
    classes, order = int(labels.max()) + 1, sorted({*ks})
    labels, wanted = (each.to(found.rows.device) for each in (labels, wanted))
    # Of each k a row of hits, and the number of queries.
    hits = torch.zeros(len(order), len(top) + 1, dtype=torch.float64, device=labels.device)
    hits[:, -1] = len(wanted)
    best = {k: torch.empty_like(wanted) for k in order}
    for part in pieces_of(range(len(wanted)), max(1, COUNTED // classes)):
        some = slice(part.start, part.stop)
        near = Found(found.similarities[some], found.rows[some])
        for k, row, counted in zip(order, hits, _votes(near, labels, classes, order, sigma)):
            ranked = counted.argsort(dim=1, descending=True, stable=True)
            best[k][some] = ranked[:, 0]
            for place, count in enumerate(top):
                row[place] += _among(ranked, wanted[some], count).sum()
    if answers is not None:
        answers |= {k: gather(each).rows if over_ranks else each for k, each in best.items()}
    hits = sum_in_place(hits) if over_ranks else hits
    shares = dict(zip(order, (100.0 * hits[:, :-1] / hits[:, -1:]).tolist(), strict=True))
    return {k: shares[k] for k in ks}


@torch.no_grad()
def knn_scores(
    train_features: Tensor,
    train_rows: Tensor,
    test_features: Tensor,
    k: int,
    sigma: float | None = 0.1,
    metric: Metric = "cosine",
    piece: int = PIECE,
) -> Tensor:
    """For images of several classes: the share of the votes for each class.

    train_rows: indicators N x classes. A neighbour whose indicator is unknown (-1) has no vote on
    that class. A class without votes has the score 0.
    """
    check_features(NAME, train_features, train_rows, test_features)
    found = knn_search(train_features, test_features, k, metric, piece=piece)
    return _scores(found, train_rows, k, sigma)


@torch.no_grad()
def knn_scores_curve(
    train_features: Rows,
    train_rows: Tensor,
    test_features: Rows,
    ks: Sequence[int],
    sigma: float | None = 0.1,
    metric: Metric = "cosine",
    device: torch.device | None = None,
    over_ranks: bool = False,
) -> Iterator[tuple[int, Tensor]]:
    """The same for each k, from one search. over_ranks: as in knn_curve."""
    check_features(NAME, train_features, train_rows, test_features, over_ranks)
    among = own_share(len(test_features), over_ranks)
    found = knn_search(train_features, test_features, max(ks), metric, device=device, among=among)
    for k in sorted({*ks}):
        scores = _scores(found, train_rows, k, sigma)
        yield k, gather(scores).rows if over_ranks else scores


def _scores(found: Found, train_rows: Tensor, k: int, sigma: float | None) -> Tensor:
    train_rows = train_rows.to(found.rows.device)
    shown, known = (train_rows > 0).double(), (train_rows >= 0).double()
    scores = shown.new_zeros(len(found.rows), train_rows.shape[1])
    rows = max(1, COUNTED // (k * train_rows.shape[1]))
    near = (each[:, :k] for each in found)
    for some, neighbours, scored in zip(*(each.split(rows) for each in (*near, scores))):
        weights = _weights(some, sigma)
        votes, of = (
            torch.einsum("nk,nkc->nc", weights, each[neighbours]) for each in (shown, known)
        )
        scored.copy_(torch.where(of > 0, votes / of, 0.0))
    return scores


def knn_search(train: Rows, test: Rows, k: int, metric: Metric = "cosine", **how: Any) -> Found:
    """For `curve` and `votes`, which may use fewer neighbours. how: of neighbours.search."""
    if not 1 <= k <= len(train):
        raise ConfigError(
            f"{NAME}: config.NEAREST_NEIGHBOR.TOPK: expected 1 to {len(train)}, the number of "
            f"training features; got {k}."
        )
    return search(train, test, k, metric, **how)


def _votes(
    found: Found, labels: Tensor, classes: int, ks: Sequence[int], sigma: float | None
) -> Iterator[Tensor]:
    """For each k, in ascending order, the votes; the tensor is the same, and grows."""
    weights, chosen = _weights(found.similarities, sigma), labels[found.rows]
    votes = weights.new_zeros(len(weights), classes)
    for before, k in zip((0, *ks), ks):
        votes.scatter_add_(1, chosen[:, before:k], weights[:, before:k])
        yield votes


def knn_predict(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    k: int,
    sigma: float | None = 0.1,
    metric: Metric = "cosine",
) -> Tensor:
    """The class with most votes, for each test feature."""
    return knn_votes(train_features, train_labels, test_features, k, sigma, metric).argmax(dim=1)


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    k: int,
    sigma: float | None = 0.1,
    metric: Metric = "cosine",
) -> float:
    """The percentage of test features whose class is predicted."""
    votes = knn_votes(train_features, train_labels, test_features, k, sigma, metric)
    return top_accuracy(votes, test_labels)


def top_accuracy(scores: Tensor, labels: Tensor, top: int = 1) -> float:
    """The percentage of rows whose label is among the `top` classes of highest score."""
    return 100.0 * _hits(scores, labels, top).double().mean().item()


def _hits(scores: Tensor, labels: Tensor, top: int) -> Tensor:
    return _among(scores.argsort(dim=1, descending=True, stable=True), labels, top)


def _among(ranked: Tensor, labels: Tensor, top: int) -> Tensor:
    return (ranked[:, :top] == labels.unsqueeze(1)).any(dim=1)


def _weights(similarities: Tensor, sigma: float | None) -> Tensor:
    similarities = similarities.double()
    if sigma is None:
        return torch.ones_like(similarities)
    return ((similarities - similarities[:, :1]) / sigma).exp()
