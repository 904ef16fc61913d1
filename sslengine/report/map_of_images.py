"""The map of a run's images: where they are by their features, and which are their neighbours.

The features are those of `sslengine judge`: of the images that it scored the run on, from the
stores in `RUN/features`. Of a run that was not judged they are computed, for as many images as are
shown, and stored there by the same code.

Places are those of t-SNE on features of unit length, the untrained map turned onto the trained
one. All is the same for the same features: seeds are fixed, and sums have one order.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
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

from sslengine.config.assignments import overrides
from sslengine.config.options import MachineOptions, RunOptions
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.judged_view import choose, judged_train
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataLimitSampling, DataOptions, SplitOptions
from sslengine.data.sources.base import build_sources
from sslengine.distributed.device import pick_device
from sslengine.engines.features import required_weights
from sslengine.engines.judged_networks import networks_of
from sslengine.engines.run import Run
from sslengine.engines.stored import StoredSplit, store_split
from sslengine.errors import DataError, SSLEngineError
from sslengine.evaluation.features import rows_at
from sslengine.evaluation.kmeans import assign, kmeans
from sslengine.evaluation.neighbours import search
from sslengine.evaluation.options import EvaluateOptions, frozen_protocol
from sslengine.evaluation.store import Store, file_name
from sslengine.models.options import ModelOptions
from sslengine.monitor.console import Screen
from sslengine.monitor.run_facts import TRAINED, UNTRAINED
from sslengine.report.parts import JUDGED, choose_images
from sslengine.task.build import classes_of_train
from sslengine.trust import closed

FEWEST, MOST, NEAREST, QUERIES = 5, 2000, 10, 12
PERPLEXITY, COMPONENTS = 30, 50
CLUSTERS, ITERATIONS = 10, 50


@dataclass(frozen=True)
class MappedSet:
    """The images that are shown, or of which some are, before any is read."""

    run: Run
    data: DataOptions
    split: str
    options: SplitOptions  # of the split
    classes: Sequence[Classes]  # of TRAIN, for TEST
    dataset: SSLDataset
    judged: bool


@dataclass(frozen=True)
class MappedFeatures:
    """Rows for the images that are shown."""

    numbers: NDArray[np.int64]  # of the images in their dataset
    names: Sequence[str]
    labels: NDArray[np.int64]  # -1: none, or several
    classes: Sequence[str]
    rows: dict[str, Tensor]  # untrained, trained
    fingerprint: str  # of the images that were judged; empty: they were not


# ---- images


def open_mapped(folder: Path, trusted: bool) -> MappedSet:
    """Test images; training images where there are no labelled test images."""
    how: dict[str, Any] = {"trusted": trusted, "judged": True}
    judged = (folder / f"{JUDGED}.yaml").is_file()
    if judged:
        resolved = open_run(folder, name=JUDGED, **how)
    else:
        entries, _ = choose(read(open_run(folder, as_trained=True, **how).config, DataOptions))
        values = overrides(frozen_protocol("auto", [dict(each) for each in entries]))
        resolved = open_run(folder, ["engine_name=evaluate", *values], as_trained=True, **how)
    data, seed = read(resolved.config, DataOptions), read(resolved.config, RunOptions).SEED_VALUE
    device, classes = pick_device("auto"), list[Classes]()
    with suppress(SSLEngineError):  # this machine does not have the run's
        device = pick_device(read(resolved.config, MachineOptions).DEVICE)
    with closed(resolved.opened):
        if not judged:
            data.TRAIN, data.TEST = (_single_images(data, split) for split in ("TRAIN", "TEST"))
        tested = data.TEST.DATA_SOURCES and data.TEST.LABEL_TYPE == "standard"
        if tested and judged:
            classes = classes_of_train(resolved.config)
        split, options = ("TEST", data.TEST) if tested else ("TRAIN", data.TRAIN)
        more: dict[str, Any] = {"replace": False, "hold_out": data.HOLD_OUT}
        dataset = SSLDataset(options, split, seed, classes=classes, **more)
    if dataset.stream is not None:
        raise DataError("the images are a stream, which is read once from one end to the other")
    run = Run(resolved, folder, device, Screen(file=sys.stderr))
    return MappedSet(run, data, split, options, classes, dataset, judged)


def _single_images(data: DataOptions, split: str) -> SplitOptions:
    """Options for the split's first source, with the labels that it knows."""
    given: SplitOptions = getattr(data, split)
    if not given.DATA_SOURCES:
        return given
    options = judged_train(replace(data, TRAIN=given))
    if options.LABEL_TYPE == "standard":
        return options
    source = build_sources(options, data.HOLD_OUT.read_as(split))[0]
    if source.num_classes < 2:
        return options
    return replace(options, LABEL_SOURCES=options.DATA_SOURCES, LABEL_TYPE="standard")


# ---- features


def read_features(mapped: MappedSet) -> MappedFeatures:
    """Compute what is not stored. Raises where the images or the weights are not there."""
    run, split = mapped.run, mapped.split
    found, _ = networks_of(run, str(required_weights(run) or ""))
    networks = [each for each in found if each.name in (TRAINED, UNTRAINED)]
    evaluate = read(run.config, EvaluateOptions)
    named = "" if run.resolved.opened else evaluate.FEATURES  # not where a stranger says
    folder = Path(named or run.run_dir / "features")
    weights = networks[0].depends_on["weights_sha256"]
    stores = (Store.read(each.parent) for each in folder.glob(f"{split.lower()}-*/manifest.json"))
    limited = len(mapped.dataset) > MOST and not any(_is_whole(each, weights) for each in stores)
    options, data = _limited(mapped) if limited else mapped.options, mapped.data
    data = replace(data, TRAIN=options) if split == "TRAIN" else replace(data, TEST=options)
    stored = store_split(run, split, networks, folder, mapped.classes, evaluate.DTYPE, data)
    known = stored.identified(options) if mapped.judged and not limited else {}
    return _chosen(mapped, stored, str(known.get("fingerprint") or ""))


def _is_whole(store: Store, weights: str) -> bool:
    """Does it have features of more images than are shown, by these weights?"""
    same = store.depends_on.get("weights_sha256") == weights
    return same and store.samples > MOST and not store.missing()


def _limited(mapped: MappedSet) -> SplitOptions:
    """Options for a part of the images."""
    options, labels = mapped.options, mapped.dataset.standard_labels
    sampling = options.DATA_LIMIT_SAMPLING
    if sampling.SHARE or sampling.LIST:
        return options
    if options.DATA_LIMIT < 0 and labels and labels[0].ndim == 1:
        sizes = np.unique(labels[0][labels[0] >= 0], return_counts=True)[1]
        even = len(sizes) > 0 and bool(sizes.min() >= -(-MOST // len(sizes)))
        sampling = DataLimitSampling(IS_BALANCED=even)
    return replace(options, DATA_LIMIT=MOST, DATA_LIMIT_SAMPLING=sampling)


def _chosen(mapped: MappedSet, stored: StoredSplit, fingerprint: str) -> MappedFeatures:
    store, targets = stored.stores[TRAINED], stored.stores[TRAINED].targets
    labels = np.full(len(store.indices), -1)
    one_class = targets.ndim == 1 and not targets.is_floating_point()
    if one_class and mapped.options.LABEL_TYPE == "standard":
        labels = targets.numpy().astype(np.int64)
    chosen = choose_images(labels, MOST)
    at = torch.from_numpy(chosen)
    # Numbers in the whole set, also where a part of it was read.
    whole, part = (np.asarray(each.rows) for each in (mapped.dataset, stored.dataset))
    order = np.argsort(whole)
    numbers = order[np.searchsorted(whole[order], part[store.indices[at].numpy()])]
    known = list(stored.classes[0].names) if stored.classes else []
    classes = known or [str(number) for number in range(int(labels.max(initial=-1)) + 1)]
    pooled = read(mapped.run.config, ModelOptions).FEATURE_EVAL_SETTINGS
    layers = [file_name(each[0]) for each in pooled.LINEAR_EVAL_FEAT_POOL_OPS_MAP]
    layer = [each for each in (*store.layers, *layers) if each in store.layers][-1]  # the deepest
    rows = {name: rows_at(stored.stores[name].layer(layer), at) for name in (UNTRAINED, TRAINED)}
    paths = [store.paths[row] for row in chosen]
    return MappedFeatures(numbers, paths, labels[chosen], classes, rows, fingerprint)


# ---- places


def draw_map(found: MappedFeatures) -> dict[str, NDArray[Any]]:
    """Compute all of a map; parts.py reads it."""
    count = len(found.numbers)
    if count < FEWEST:
        raise DataError(f"there are {count} images, and a map takes {FEWEST}")
    rows = {name: F.normalize(torch.nan_to_num(each.flatten(1).float()))
            for name, each in found.rows.items()}  # fmt: skip
    with threadpool_limits(1), ThreadPoolExecutor(len(rows)) as pool:
        places = dict(zip(rows, pool.map(_places, rows.values())))
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


def _places(rows: Tensor) -> NDArray[np.float64]:
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
