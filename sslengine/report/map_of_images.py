"""The map of a run's images: where they are by their features, and which are their neighbours.

The features are those by which `sslengine judge` scored the run, from the stores in `RUN/features`;
what is missing there is computed by the same code. Places are those of t-SNE on features of unit
length, the untrained map turned onto the trained one. All is the same for the same features: seeds
are fixed, and sums have one order.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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

from sslengine.config.options import MachineOptions
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions
from sslengine.distributed.device import pick_device
from sslengine.engines.features import required_weights
from sslengine.engines.judged_networks import networks_of
from sslengine.engines.run import Run
from sslengine.engines.stored import store_split
from sslengine.errors import DataError, SSLEngineError
from sslengine.evaluation.features import rows_at
from sslengine.evaluation.kmeans import assign, kmeans
from sslengine.evaluation.neighbours import search
from sslengine.evaluation.options import EvaluateOptions
from sslengine.evaluation.store import file_name
from sslengine.models.options import ModelOptions
from sslengine.monitor.console import Screen
from sslengine.monitor.run_facts import TRAINED, UNTRAINED
from sslengine.report.parts import choose_images
from sslengine.task.build import classes_of_train

FEWEST, MOST, NEAREST, QUERIES = 5, 2000, 10, 12
PERPLEXITY, COMPONENTS = 30, 50
CLUSTERS, ITERATIONS = 10, 50


@dataclass(frozen=True)
class MappedImages:
    """The images that are shown, and their features."""

    dataset: SSLDataset
    split: str
    fingerprint: str  # of all images of the split
    numbers: NDArray[np.int64]  # in the dataset
    labels: NDArray[np.int64]  # -1: none, or several
    classes: Sequence[str]
    rows: dict[str, Tensor]  # untrained, trained


def read_features(resolved: Resolved, folder: Path) -> MappedImages:
    """Read those of test images; of training images where there are no labelled test images.

    resolved: the config by which the run was judged. Raises where features are missing, and images
    or weights are not there.
    """
    data, evaluate = read(resolved.config, DataOptions), read(resolved.config, EvaluateOptions)
    run = Run(resolved, folder, _pick_device(resolved), Screen(file=sys.stderr))
    networks, _ = networks_of(run, str(required_weights(run) or ""))
    networks = [each for each in networks if each.name in (TRAINED, UNTRAINED)]
    split, options, of_train = "TRAIN", data.TRAIN, list[Classes]()
    if data.TEST.DATA_SOURCES and data.TEST.LABEL_TYPE == "standard":
        split, options, of_train = "TEST", data.TEST, classes_of_train(resolved.config)
    named = "" if resolved.opened else evaluate.FEATURES  # not where a stranger says
    place = Path(named or folder / "features")
    stored = store_split(run, split, networks, place, of_train, evaluate.DTYPE)
    store, layer = stored.stores[TRAINED], _deepest(resolved, stored.stores[TRAINED].layers)
    labels, targets = np.full(len(store.indices), -1), store.targets
    if options.LABEL_TYPE == "standard" and targets.ndim == 1 and not targets.is_floating_point():
        labels = targets.numpy().astype(np.int64)
    classes = list(stored.classes[0].names) if stored.classes else []
    chosen = choose_images(labels, MOST)
    at = torch.from_numpy(chosen)
    return MappedImages(
        dataset=stored.dataset,
        split=split,
        fingerprint=str(stored.identified(options).get("fingerprint") or ""),
        numbers=store.indices[at].numpy(),
        labels=labels[chosen],
        classes=classes or [str(number) for number in range(int(labels.max(initial=-1)) + 1)],
        rows={name: rows_at(each.layer(layer), at) for name, each in stored.stores.items()},
    )


def _pick_device(resolved: Resolved) -> torch.device:
    with suppress(SSLEngineError):  # this machine does not have the run's
        return pick_device(read(resolved.config, MachineOptions).DEVICE)
    return pick_device("auto")


def _deepest(resolved: Resolved, there: Sequence[str]) -> str:
    """Return the last layer in the order of the config."""
    pooled = read(resolved.config, ModelOptions).FEATURE_EVAL_SETTINGS
    layers = [file_name(each[0]) for each in pooled.LINEAR_EVAL_FEAT_POOL_OPS_MAP]
    return [each for each in (*there, *layers) if each in there][-1]


def draw_map(found: MappedImages) -> dict[str, NDArray[Any]]:
    """Compute all of a map; parts.py reads it."""
    count = len(found.numbers)
    if count < FEWEST:
        raise DataError(f"there are {count} images, and a map takes {FEWEST}")
    rows = {name: F.normalize(torch.nan_to_num(each.flatten(1).float()))
            for name, each in found.rows.items()}  # fmt: skip
    with threadpool_limits(1), ThreadPoolExecutor(len(rows)) as pool:
        places = dict(zip(rows, pool.map(_place, rows.values())))
    turn, _ = orthogonal_procrustes(places[UNTRAINED], places[TRAINED])
    places[UNTRAINED] = places[UNTRAINED] @ turn
    arrays: dict[str, NDArray[Any]] = {}
    for name, each in rows.items():
        near = search(each, each, min(NEAREST, count - 1), "cosine", own=True)
        low, high = places[name].min(axis=0), places[name].max(axis=0)
        fitted = (places[name] - low) / np.maximum(high - low, 1e-9)
        arrays[f"places_{name}"] = fitted.astype(np.float32)
        arrays[f"nearest_{name}"] = near.rows.numpy()
        arrays[f"similar_{name}"] = near.similarities.numpy()
    centroids = kmeans(rows[TRAINED], min(len(found.classes) or CLUSTERS, count), ITERATIONS)
    arrays["clusters"] = assign(rows[TRAINED], centroids)[0].numpy()
    queries = choose_images(found.labels, QUERIES)
    return {**arrays, "queries": queries, "labels": found.labels, "numbers": found.numbers}


def _place(rows: Tensor) -> NDArray[np.float64]:
    """Centred places; all the same one where the features are."""
    points = (rows - rows.mean(dim=0)).numpy()
    scale = float(points.std())
    if scale < 1e-9:
        return np.zeros((len(points), 2))
    pca: Any = partial(PCA, random_state=0)
    tsne: Any = partial(TSNE, random_state=0)
    count = min(COMPONENTS, *points.shape)
    points = pca(count, svd_solver="randomized").fit_transform(points / scale)
    init = "pca" if points.shape[1] > 1 else "random"
    place = tsne(perplexity=min(PERPLEXITY, len(points) / 4), init=init)
    with threadpool_limits(1):  # of this thread: several would add in an order that changes
        made = place.fit_transform(points).astype(np.float64)
    centred: NDArray[np.float64] = made - made.mean(axis=0)
    return centred
