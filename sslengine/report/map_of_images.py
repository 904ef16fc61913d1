"""The map of a run's images: where they are by their features, and which are their neighbours.

The features are those by which `sslengine judge` scored the run, from the stores in `RUN/features`;
what is missing there is computed by the same code. Places are those of t-SNE on features of unit
length, the untrained map turned onto the trained one. All is the same for the same features: seeds
are fixed, and sums have one order.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
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
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.distributed.ranks import pick_device
from sslengine.engine.build import classes_of_train
from sslengine.engines.features import StoredSplit, store_split
from sslengine.engines.judged_networks import networks_of
from sslengine.engines.run import Run
from sslengine.errors import SSLEngineError
from sslengine.evaluate.features import rows_at
from sslengine.evaluate.kmeans import assign, kmeans
from sslengine.evaluate.knn import search
from sslengine.evaluate.options import EvaluateOptions
from sslengine.evaluate.store import file_name
from sslengine.models.options import ModelOptions
from sslengine.monitor.console import Screen
from sslengine.monitor.run_facts import TRAINED, UNTRAINED
from sslengine.report.content import Map
from sslengine.report.parts import Album, choose_images
from sslengine.screen import say
from sslengine.trained import require_weights

MOST, NEAREST, QUERIES = 2000, 10, 12
PERPLEXITY, COMPONENTS = 30, 50
CLUSTERS, ITERATIONS = 10, 50


def make_map(resolved: Resolved, folder: Path, album: Album) -> dict[str, Any]:
    """Return what parts.json keeps of a map, whose thumbnails are added to the album.

    It shows test images; training images where there are no labelled test images. resolved: the
    config by which the run was judged. Raises where features are missing, and images or weights
    are not there.
    """
    split, options, stored = _read_features(resolved, folder)
    store, targets = stored.stores[TRAINED], stored.stores[TRAINED].targets
    labels = np.full(len(store.indices), -1)  # none, or several
    if options.LABEL_TYPE == "standard" and targets.ndim == 1 and not targets.is_floating_point():
        labels = targets.numpy().astype(np.int64)
    classes = list(stored.classes[0].names) if stored.classes else []
    album.classes = classes or [str(number) for number in range(int(labels.max(initial=-1)) + 1)]
    chosen = choose_images(labels, MOST)
    at = torch.from_numpy(chosen)
    numbers = store.indices[at].tolist()
    pooled = read(resolved.config, ModelOptions).FEATURE_EVAL_SETTINGS
    layers = [file_name(each[0]) for each in pooled.LINEAR_EVAL_FEAT_POOL_OPS_MAP]
    layer = [each for each in (*store.layers, *layers) if each in store.layers][-1]  # the deepest
    rows = {name: rows_at(each.layer(layer), at) for name, each in stored.stores.items()}
    for number, label in zip(numbers, labels[chosen].tolist()):
        album.add(split, stored.dataset, number, label)
    say(f"map: placing {len(chosen)} images by their features", sys.stderr)
    drawn, similar = draw_map(rows, labels[chosen], len(album.classes))
    return {
        "drawn": asdict(drawn),
        "similar": similar,
        "numbers": numbers,
        "fingerprint": str(stored.identified(options).get("fingerprint") or ""),
    }


def _read_features(resolved: Resolved, folder: Path) -> tuple[str, SplitOptions, StoredSplit]:
    data, evaluate = read(resolved.config, DataOptions), read(resolved.config, EvaluateOptions)
    device = pick_device("auto")
    with suppress(SSLEngineError):  # this machine does not have the run's
        device = pick_device(read(resolved.config, MachineOptions).DEVICE)
    run = Run(resolved, folder, device, Screen(file=sys.stderr))
    networks, _ = networks_of(run, require_weights(run.config, run.run_dir))
    networks = [each for each in networks if each.name in (TRAINED, UNTRAINED)]
    split, classes = "TRAIN", list[Classes]()
    if data.TEST.DATA_SOURCES and data.TEST.LABEL_TYPE == "standard":
        split, classes = "TEST", classes_of_train(resolved.config)
    named = "" if resolved.opened else evaluate.FEATURES  # not where a stranger says
    place = Path(named or folder / "features")
    stored = store_split(run, split, networks, place, classes, evaluate.DTYPE)
    return split, getattr(data, split), stored


def draw_map(
    features: Mapping[str, Tensor], labels: NDArray[np.int64], classes: int
) -> tuple[Map, list[list[float]]]:
    """Compute a map, and how similar each image's neighbours are to it, trained."""
    count = len(labels)
    rows = {name: F.normalize(torch.nan_to_num(each.flatten(1).float()))
            for name, each in features.items()}  # fmt: skip
    with threadpool_limits(1), ThreadPoolExecutor(len(rows)) as pool:
        places = dict(zip(rows, pool.map(_place, rows.values())))
    turn, _ = orthogonal_procrustes(places[UNTRAINED], places[TRAINED])
    places[UNTRAINED] = places[UNTRAINED] @ turn
    found = {name: search(each, each, min(NEAREST, count - 1), "cosine", own=True)
             for name, each in rows.items()}  # fmt: skip
    centroids = kmeans(rows[TRAINED], min(classes or CLUSTERS, count), ITERATIONS)
    shares, by_class = dict[str, float](), dict[str, Sequence[float]]()
    for name, near in found.items() if labels.max() >= 0 else ():
        same = (labels[near.rows.numpy()] == labels[:, None]).mean(axis=1) * 100
        shares[name] = float(same[labels >= 0].mean())
        of_class = [same[labels == number] for number in range(classes)]
        by_class[name] = [float(each.mean()) if len(each) else 0.0 for each in of_class]
    drawn = Map(
        {name: _fit(each) for name, each in places.items()},
        {name: near.rows.tolist() for name, near in found.items()},
        shares,
        by_class,
        assign(rows[TRAINED], centroids)[0].tolist(),
        (1 - found[TRAINED].similarities.numpy()).mean(axis=1).tolist(),
        choose_images(labels, QUERIES).tolist(),
    )
    return drawn, found[TRAINED].similarities.tolist()


def _fit(places: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Let each axis go from 0 to 1."""
    low, high = places.min(axis=0), places.max(axis=0)
    fitted = (places - low) / np.maximum(high - low, 1e-9)
    return [(x, y) for x, y in fitted.astype(np.float32).tolist()]


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
