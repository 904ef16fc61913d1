"""The map of a run's images: where they are by their features, and which are their neighbours.

Places are those of t-SNE on features of unit length, the untrained map turned onto the trained
one. All is the same for the same features: seeds are fixed, and sums have one order.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes  # type: ignore[import-untyped]
from sklearn.decomposition import PCA  # type: ignore[import-untyped]
from sklearn.manifold import TSNE  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional as F

from sslengine.errors import DataError
from sslengine.evaluation.kmeans import assign, kmeans
from sslengine.evaluation.neighbours import search
from sslengine.report.mapped_images import MappedFeatures, spread
from sslengine.report.parts import NETWORKS

FEWEST, NEAREST, QUERIES = 5, 10, 12
PERPLEXITY, COMPONENTS = 30, 50
CLUSTERS, ITERATIONS = 10, 50


def draw_map(found: MappedFeatures) -> dict[str, NDArray[Any]]:
    """Compute all of a map; parts.py reads it."""
    if len(found.numbers) < FEWEST:
        raise DataError(f"of {len(found.numbers)} images there is no map; it takes {FEWEST}")
    rows = {name: _unit_length(getattr(found, name)) for name in NETWORKS}
    with threadpool_limits(1), ThreadPoolExecutor(len(rows)) as pool:
        places = dict(zip(rows, pool.map(_places, rows.values())))
    turn, _ = orthogonal_procrustes(*(places[name] for name in NETWORKS))
    places["untrained"] = places["untrained"] @ turn
    arrays: dict[str, NDArray[Any]] = {}
    for name, each in rows.items():
        near = search(each, each, min(NEAREST, len(each) - 1), "cosine", own=True)
        arrays[f"places_{name}"] = _fitted(places[name]).astype(np.float32)
        arrays[f"nearest_{name}"] = near.rows.numpy().astype(np.int32)
        similar = near.similarities.numpy()
    clusters = min(len(found.classes) or CLUSTERS, len(found.numbers))
    centroids = kmeans(rows["trained"], clusters, ITERATIONS)
    return {
        **arrays,
        "similar": similar.astype(np.float32),  # of the trained neighbours
        "clusters": assign(rows["trained"], centroids)[0].numpy().astype(np.int32),
        "queries": choose_queries(found.labels).astype(np.int32),
        "labels": found.labels,
        "numbers": found.numbers,
    }


def _unit_length(features: Tensor) -> Tensor:
    return F.normalize(torch.nan_to_num(features))


def _places(rows: Tensor) -> NDArray[np.float64]:
    """Centred places; all the same one where the features are."""
    points = (rows - rows.mean(dim=0)).numpy()
    scale = float(points.std())
    if scale < 1e-9:
        return np.zeros((len(points), 2))
    points = points / scale
    if points.shape[1] > COMPONENTS:
        count = min(COMPONENTS, len(points))
        reduce: Any = PCA
        points = reduce(count, svd_solver="randomized", random_state=0).fit_transform(points)
    perplexity = min(PERPLEXITY, len(points) / 4)
    init = "pca" if points.shape[1] > 1 else "random"
    with threadpool_limits(1):  # of this thread: several would add in an order that changes
        place: Any = TSNE
        made = place(perplexity=perplexity, init=init, random_state=0).fit_transform(points)
    centred: NDArray[np.float64] = made.astype(np.float64) - made.mean(axis=0)
    return centred


def _fitted(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each axis from 0 to 1."""
    low, high = places.min(axis=0), places.max(axis=0)
    width = np.where(high > low, high - low, 1)
    fitted: NDArray[np.float64] = np.where(high > low, (places - low) / width, 0.5)
    return fitted


def choose_queries(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Choose twelve images whose neighbours are shown: one of each class first."""
    groups = [np.flatnonzero(labels == each) for each in np.unique(labels) if each >= 0]
    if not groups:
        return spread(np.arange(len(labels)), min(QUERIES, len(labels)))
    if len(groups) > QUERIES:
        groups = [groups[each] for each in spread(np.arange(len(groups)), QUERIES)]
    each = -(-QUERIES // len(groups))
    orders = [spread(group, min(each, len(group))) for group in groups]
    chosen = [order[turn] for turn in range(each) for order in orders if turn < len(order)]
    return np.array(chosen[:QUERIES])
