"""`cluster_features_and_label`: ClusterFit's first stage, images labelled by k-means of features.

Features are scaled to unit length, and whitened with DIMENSIONALITY_REDUCTION. Centroids are those
of DATA_PARTITION; images of TEST_PARTITION get the nearest. Into config.CLUSTERFIT.OUTPUT_DIR, or
the run's folder, are written, named by dataset, split, layer, clusters (N) and width (D):

    imagenet1k_train_res5_N16000_D2048_images.npy, _labels.npy    a disk_filelist for training
    imagenet1k_train_res5_N16000_D2048.npz                        centroids, distances, images ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.atomic import whole_file
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.contrib.vissl_benchmarks.inputs import stored_layer, stored_splits
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import is_primary
from sslengine.engines.features import paths_of, save
from sslengine.engines.options import ClusterFitOptions
from sslengine.engines.run import Run
from sslengine.errors import ConfigError, listing, nearest
from sslengine.evaluate.given import Labelled, layers_in, read_features
from sslengine.evaluate.kmeans import assign, kmeans
from sslengine.evaluate.retrieval import Whitening
from sslengine.registry import register_engine

WHERE = "config.CLUSTERFIT.FEATURES"


@register_engine("cluster_features_and_label")
def cluster_features_and_label(run: Run) -> None:
    """All ranks compute features; rank 0 clusters them, and the other ranks do not wait."""
    options = read(run.config, ClusterFitOptions)
    splits = options.splits
    found = _computed(run, splits) if options.FEATURES.EXTRACT else _read_files(run, splits)
    if not is_primary():
        return
    layer, read_split = found
    first = read_split(splits[0])
    points = _unit(first.features)
    sample = _sampled(points, options)
    width = options.FEATURES.DIMENSIONALITY_REDUCTION
    whiten = Whitening.fit(sample, width) if width else None
    prepared = (whiten(sample) if whiten else sample).to(run.device)
    run.say(f"clustering {len(prepared)} features of width {prepared.shape[1]}")
    centroids = kmeans(
        prepared, options.NUM_CLUSTERS, options.NUM_ITER, options.DATA_LIMIT_SAMPLING.SEED
    )
    for split in splits:
        given = first if split == splits[0] else read_split(split)
        rows = _unit(given.features)
        labels, distances = assign((whiten(rows) if whiten else rows).to(run.device), centroids)
        arrays = {
            "hard_labels": labels, "distances": distances, "centroids": centroids,
            "sample_indices": given.indices,
        }  # fmt: skip
        _write(run, split, layer, {name: each.cpu().numpy() for name, each in arrays.items()})


def _unit(features: Tensor) -> Tensor:
    flat = features.flatten(1).float()
    lengths: Tensor = flat.norm(dim=1, keepdim=True)
    return flat / (lengths + 1e-5)


def _sampled(points: Tensor, options: ClusterFitOptions) -> Tensor:
    if options.DATA_LIMIT < 0:
        return points
    draw = torch.Generator().manual_seed(options.DATA_LIMIT_SAMPLING.SEED)
    return points[torch.randperm(len(points), generator=draw)[: options.DATA_LIMIT].sort().values]


def _computed(run: Run, splits: Sequence[str]) -> tuple[str, Callable[[str], Labelled]]:
    options = read(run.config, ClusterFitOptions).FEATURES
    found = stored_splits(run, splits, labels=False)
    stores = {split: each.stores["trained"] for split, each in found.items()}
    if not is_primary():
        return "", lambda split: read_features(Path(), split, "")
    layer = _chosen(options.LAYER_NAME, stores[splits[0]].layers)
    return layer, lambda split: stored_layer(stores[split], layer)


def _read_files(run: Run, splits: Sequence[str]) -> tuple[str, Callable[[str], Labelled]]:
    options = read(run.config, ClusterFitOptions).FEATURES
    folder = Path(options.PATH)
    run.describe()
    known = layers_in(folder, splits[0])
    if not known:
        raise ConfigError(
            f"{WHERE}.PATH: {folder.absolute()} has no features of {splits[0]}; expected files of "
            f"the engine extract_features. Or compute them: {WHERE}.EXTRACT=true."
        )
    layer = _chosen(options.LAYER_NAME, known)
    return layer, lambda split: read_features(folder, split, layer)


def _chosen(name: str, known: Sequence[str]) -> str:
    if name in known or (not name and len(known) == 1):
        return name or known[0]
    hint = nearest(name, known)
    raise ConfigError(
        f"{WHERE}.LAYER_NAME: expected one of {listing(known)}; got {name!r}. {hint}".rstrip()
    )


def _write(run: Run, split: str, layer: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    options = read(run.config, ClusterFitOptions)
    count, width = arrays["centroids"].shape
    parts = (options.FEATURES.DATASET_NAME, split.lower(), layer, f"N{count}", f"D{width}")
    folder, name = Path(options.OUTPUT_DIR or run.run_dir), "_".join(filter(None, parts))
    data = read(run.config, DataOptions)
    seed = read(run.config, RunOptions).SEED_VALUE
    dataset = SSLDataset(
        getattr(data, split), split, seed, replace=False, hold_out=data.HOLD_OUT
    )  # fmt: skip
    images = np.array(paths_of(dataset, torch.from_numpy(arrays["sample_indices"])))
    whole: dict[str, Any] = {**arrays, "images": images}
    with whole_file(folder / f"{name}.npz") as file:
        np.savez(file, **whole)
    save(folder / f"{name}_images.npy", images)
    save(folder / f"{name}_labels.npy", arrays["hard_labels"])
    run.say(f"{split.lower()}: {len(images)} images, {folder / name}_labels.npy")
