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

import torch
from torch import Tensor

from sslengine.errors import ConfigError, DataError
from sslengine.evaluation.features import check_features
from sslengine.evaluation.neighbours import PIECE, Found, search
from sslengine.evaluation.options import Metric

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
    return votes(
        knn_search(train_features, test_features, k, metric, piece), train_labels, k, sigma
    )


def votes(found: Found, labels: Tensor, k: int, sigma: float | None = 0.1) -> Tensor:
    """Of the k nearest: queries x classes."""
    (counted,) = _votes(found, labels, int(labels.max()) + 1, [k], sigma)
    return counted


def _expect_numbers(train: Tensor, labels: Tensor, test: Tensor) -> None:
    check_features(NAME, train, labels, test)
    if labels.ndim != 1:
        raise DataError(f"{NAME}: labels are rows of indicators, which knn_scores takes.")


@torch.no_grad()
def knn_curve(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    ks: Sequence[int],
    sigma: float | None = 0.1,
    metric: Metric = "cosine",
    top: Sequence[int] = (1,),
) -> dict[int, list[float]]:
    """For each k the percentages of test features with their class among the `top` best ones."""
    _expect_numbers(train_features, train_labels, test_features)
    found = knn_search(train_features, test_features, max(ks), metric)
    return curve(found, train_labels, test_labels, ks, sigma, top)


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
    top: Sequence[int],
) -> dict[int, list[float]]:  # fmt: skip
    classes, order = int(labels.max()) + 1, sorted(ks)
    hits = {k: [0.0] * len(top) for k in order}
    stride = max(1, COUNTED // classes)
    for start in range(0, len(wanted), stride):
        part = slice(start, start + stride)
        some = Found(found.similarities[part], found.rows[part])
        for k, counted in zip(order, _votes(some, labels, classes, order, sigma)):
            for place, count in enumerate(top):
                hits[k][place] += float(_hits(counted, wanted[part], count).sum())
    return {k: [100.0 * each / len(wanted) for each in hits[k]] for k in ks}


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
    found = knn_search(train_features, test_features, k, metric, piece)
    shown, known = (train_rows > 0).double(), (train_rows >= 0).double()
    scores = shown.new_zeros(len(test_features), train_rows.shape[1])
    rows = max(1, COUNTED // (k * train_rows.shape[1]))
    for some, neighbours, scored in zip(*(each.split(rows) for each in (*found, scores))):
        weights = _weights(some, sigma)
        votes, of = (
            torch.einsum("nk,nkc->nc", weights, each[neighbours]) for each in (shown, known)
        )
        scored.copy_(torch.where(of > 0, votes / of, 0.0))
    return scores


def knn_search(
    train: Tensor, test: Tensor, k: int, metric: Metric = "cosine", piece: int = PIECE
) -> Found:
    """For `curve` and `votes`, which may use fewer neighbours."""
    if not 1 <= k <= len(train):
        raise ConfigError(
            f"{NAME}: config.NEAREST_NEIGHBOR.TOPK: expected 1 to {len(train)}, the number of "
            f"training features; got {k}."
        )
    return search(train, test, k, metric, piece=piece)


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
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :top]
    return (best == labels.unsqueeze(1)).any(dim=1)


def _weights(similarities: Tensor, sigma: float | None) -> Tensor:
    similarities = similarities.double()
    if sigma is None:
        return torch.ones_like(similarities)
    return ((similarities - similarities[:, :1]) / sigma).exp()
