"""k nearest neighbours: the most similar training features vote for a class.

    votes_c = sum over the k nearest with label c of exp((s_i - s_1) / sigma)

with s_i the similarity of the i-th nearest: the cosine, the dot product, or minus the
Euclidean distance. (Subtracting s_1 changes no result and keeps the exponential finite.)
Without sigma, every neighbour has one vote.

The result is exact. Of equally similar training features the first ones vote; of classes
with equal votes the lower number wins.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.errors import ConfigError, DataError
from sslengine.evaluation.features import check_features
from sslengine.evaluation.options import Metric

NAME = "Nearest neighbours"
# Similarities in memory at once: 64 MB.
PIECE = 2**24


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

    Features are N x anything, labels N class numbers. Cost: train x test x dimensions
    multiplications; memory for the features and a few times `piece` similarities.
    """
    check_features(NAME, train_features, train_labels, test_features)
    if train_labels.ndim != 1:
        raise DataError(f"{NAME}: labels are rows of indicators, which knn_scores takes.")
    train, test = _prepared(train_features, test_features, k, metric)
    votes = test.new_zeros(len(test), int(train_labels.max()) + 1, dtype=torch.float64)
    rows = max(1, piece // len(train))
    for some, counted in zip(test.split(rows), votes.split(rows)):
        neighbours, weights = _neighbours(some, train, k, sigma, metric)
        counted.scatter_add_(1, train_labels[neighbours], weights)
    return votes


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
    train, test = _prepared(train_features, test_features, k, metric)
    shown, known = (train_rows > 0).double(), (train_rows >= 0).double()
    scores = test.new_zeros(len(test), train_rows.shape[1], dtype=torch.float64)
    rows = max(1, piece // max(len(train), k * train_rows.shape[1]))
    for some, scored in zip(test.split(rows), scores.split(rows)):
        neighbours, weights = _neighbours(some, train, k, sigma, metric)
        votes, of = (
            torch.einsum("nk,nkc->nc", weights, each[neighbours]) for each in (shown, known)
        )
        scored.copy_(torch.where(of > 0, votes / of, 0.0))
    return scores


def _prepared(
    train_features: Tensor, test_features: Tensor, k: int, metric: Metric
) -> tuple[Tensor, Tensor]:
    if not 1 <= k <= len(train_features):
        raise ConfigError(
            f"Nearest neighbours: config.NEAREST_NEIGHBOR.TOPK: expected 1 to "
            f"{len(train_features)}, the number of training features; got {k}."
        )
    return _prepare(train_features, metric), _prepare(test_features, metric)


def _neighbours(
    some: Tensor, train: Tensor, k: int, sigma: float | None, metric: Metric
) -> tuple[Tensor, Tensor]:
    """Of each row the k nearest, and their votes."""
    similarities = _similarities(some, train, metric)
    neighbours = _nearest(similarities, k)
    return neighbours, _weights(similarities.gather(1, neighbours).double(), sigma)


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
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :top]
    hits = (best == labels.unsqueeze(1)).any(dim=1)
    return 100.0 * hits.double().mean().item()


def _prepare(features: Tensor, metric: Metric) -> Tensor:
    # Distances are |a|^2 - 2ab + |b|^2, which cancels for close neighbours: use float64.
    least = torch.float64 if metric == "euclid" else torch.float32
    features = features.flatten(1).to(torch.promote_types(features.dtype, least))
    return F.normalize(features) if metric == "cosine" else features


def _similarities(some: Tensor, train: Tensor, metric: Metric) -> Tensor:
    if metric == "euclid":
        return -torch.cdist(some, train, compute_mode="use_mm_for_euclid_dist")
    return some @ train.T


def _nearest(similarities: Tensor, k: int) -> Tensor:
    """The columns of the k largest of each row; of equal values the first."""
    largest, columns = similarities.topk(min(k + 1, similarities.shape[1]), dim=1)
    columns = columns[:, :k]
    # topk chooses arbitrarily among equal entries. That matters only if the k-th value equals
    # the next one, which is rare: only such rows are sorted.
    tied = largest[:, k - 1 : k].eq(largest[:, k:]).any(dim=1)
    if tied.any():
        ordered = similarities[tied].argsort(dim=1, descending=True, stable=True)
        columns[tied] = ordered[:, :k]
    return columns


def _weights(similarities: Tensor, sigma: float | None) -> Tensor:
    if sigma is None:
        return torch.ones_like(similarities)
    nearest = similarities.amax(dim=1, keepdim=True)
    return ((similarities - nearest) / sigma).exp()
