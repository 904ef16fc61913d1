"""Which images a run's map shows, and their features by the trained and the untrained trunk.

The features are those of `sslengine judge`: of the images that it scored the run on, from the
stores in `RUN/features`. Of a run that was not judged, or of more images since then than are
shown, they are computed for as many as are shown, and stored there by the same code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.config.assignments import overrides
from sslengine.config.options import MachineOptions, RunOptions
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.fingerprint import hash_here
from sslengine.data.judged_view import choose, judged_train
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataLimitSampling, DataOptions, SplitOptions
from sslengine.data.sources.base import build_sources
from sslengine.distributed.device import pick_device
from sslengine.engines.features import required_weights
from sslengine.engines.judged_networks import TRAINED, UNTRAINED, networks_of
from sslengine.engines.run import Run
from sslengine.engines.stored import Network, StoredSplit, store_split
from sslengine.errors import DataError, SSLEngineError
from sslengine.evaluation.features import rows_at
from sslengine.evaluation.kept import digest_of
from sslengine.evaluation.options import EvaluateOptions, frozen_protocol
from sslengine.evaluation.store import Store, file_name
from sslengine.models.options import ModelOptions
from sslengine.monitor.console import Screen
from sslengine.task.build import classes_of_train

JUDGED = "config_evaluate"
MOST = 2000


@dataclass(frozen=True)
class MappedSet:
    """The images that are shown, or of which some are, before any is read."""

    run: Run
    data: DataOptions
    split: str
    classes: Sequence[Classes]  # of TRAIN, for TEST
    dataset: SSLDataset
    judged: bool

    @property
    def options(self) -> SplitOptions:
        options: SplitOptions = getattr(self.data, self.split)
        return options

    def digest(self, checkpoint: str) -> str:
        """What a map depends on. checkpoint: what identifies the weights."""
        entries = repr([dict(each) for each in self.options.TRANSFORMS])
        return digest_of(checkpoint, self.split, entries, self.hash)

    @property
    def hash(self) -> str:
        return hash_here(self.dataset)

    def image(self, number: int) -> Any:
        """As the run decodes it: a picture or an array."""
        return self.dataset.sources[0].image(int(self.dataset.rows[number]))


@dataclass(frozen=True)
class MappedFeatures:
    """Rows for the images that are shown."""

    numbers: NDArray[np.int64]  # of the images in their dataset
    names: Sequence[str]
    labels: NDArray[np.int64]  # -1: none, or several
    classes: Sequence[str]
    untrained: Tensor
    trained: Tensor
    fingerprint: str  # of the images that were judged; empty: they were not


def open_mapped(folder: Path, trusted: bool) -> MappedSet:
    judged = (folder / f"{JUDGED}.yaml").is_file()
    if judged:
        resolved = open_run(folder, trusted=trusted, judged=True, name=JUDGED)
        data = read(resolved.config, DataOptions)
    else:
        opened = open_run(folder, trusted=trusted, judged=True, as_trained=True)
        entries, _ = choose(read(opened.config, DataOptions))
        values = overrides(frozen_protocol("auto", [dict(each) for each in entries]))
        asked = ["engine_name=evaluate", *values]
        resolved = open_run(folder, asked, trusted=trusted, judged=True, as_trained=True)
        data = _single_images(read(resolved.config, DataOptions))
    split, classes = "TRAIN", list[Classes]()
    if data.TEST.DATA_SOURCES and data.TEST.LABEL_TYPE == "standard":
        split = "TEST"
        if data.TRAIN.LABEL_TYPE == "standard" and judged:
            classes = classes_of_train(resolved.config)
    run = Run(resolved, folder, _device(read(resolved.config, MachineOptions).DEVICE),
              Screen(file=sys.stderr))  # fmt: skip
    seed = read(resolved.config, RunOptions).SEED_VALUE
    options = getattr(data, split)
    dataset = SSLDataset(
        options, split, seed, classes=classes, replace=False, hold_out=data.HOLD_OUT
    )
    if dataset.stream is not None:
        raise DataError("the images are a stream, which is read once from one end to the other")
    return MappedSet(run, data, split, classes, dataset, judged)


def _device(name: str) -> torch.device:
    """The run's; another one if this machine does not have it."""
    with suppress(SSLEngineError):
        return pick_device(name)
    return pick_device("auto")


def _single_images(data: DataOptions) -> DataOptions:
    """Return DATA for the first source of each split, with the labels that it knows."""
    for split in ("TRAIN", "TEST"):
        given: SplitOptions = getattr(data, split)
        if not given.DATA_SOURCES:
            continue
        options = judged_train(replace(data, TRAIN=given))
        if options.LABEL_TYPE != "standard":
            source = build_sources(options, data.HOLD_OUT.read_as(split))[0]
            if source.num_classes > 1:
                options = replace(
                    options, LABEL_SOURCES=options.DATA_SOURCES, LABEL_TYPE="standard"
                )
        data = _with(data, split, options)
    return data


def _with(data: DataOptions, split: str, options: SplitOptions) -> DataOptions:
    return replace(data, TRAIN=options) if split == "TRAIN" else replace(data, TEST=options)


def read_features(mapped: MappedSet) -> MappedFeatures:
    """Compute what is not stored. Raises where the images or the weights are not there."""
    run = mapped.run
    weights = required_weights(run)
    networks = [
        each for each in networks_of(run, str(weights or ""))[0]
        if each.name in (TRAINED, UNTRAINED)
    ]  # fmt: skip
    evaluate = read(run.config, EvaluateOptions)
    own = run.resolved.opened is None and evaluate.FEATURES
    folder = Path(own or run.run_dir / "features")
    data = mapped.data
    if len(mapped.dataset) > MOST and not _is_stored(folder, mapped.split, networks[0]):
        data = _with(data, mapped.split, _limited(mapped))
    stored = store_split(run, mapped.split, networks, folder, mapped.classes, evaluate.DTYPE, data)
    fingerprint = ""
    if mapped.judged and data is mapped.data:
        fingerprint = str(stored.identified(mapped.options).get("fingerprint") or "")
    return _chosen(mapped, stored, fingerprint)


def _is_stored(folder: Path, split: str, network: Network) -> bool:
    """Are there features of the whole set by these weights?"""
    for file in folder.glob(f"{split.lower()}-*/manifest.json"):
        store = Store.read(file.parent)
        same = store.depends_on.get("weights_sha256") == network.depends_on["weights_sha256"]
        if same and store.samples > MOST and not store.missing():
            return True
    return False


def _limited(mapped: MappedSet) -> SplitOptions:
    """A part of the images, where that is a part of those that the options choose."""
    options, labels = mapped.options, mapped.dataset.standard_labels
    if options.DATA_LIMIT_SAMPLING.SHARE or options.DATA_LIMIT_SAMPLING.LIST:
        return options
    if options.DATA_LIMIT >= 0:  # of the same draw a smaller limit takes the first ones
        return replace(options, DATA_LIMIT=MOST)
    sampling = DataLimitSampling()
    if labels and labels[0].ndim == 1:
        sizes = np.unique(labels[0][labels[0] >= 0], return_counts=True)[1]
        sampling.IS_BALANCED = len(sizes) > 0 and bool(sizes.min() >= -(-MOST // len(sizes)))
    return replace(options, DATA_LIMIT=MOST, DATA_LIMIT_SAMPLING=sampling)


def _chosen(mapped: MappedSet, stored: StoredSplit, fingerprint: str) -> MappedFeatures:
    store, untrained = (stored.stores[name] for name in (TRAINED, UNTRAINED))
    labels = np.full(len(store.indices), -1)
    targets = store.targets
    labelled = mapped.options.LABEL_TYPE == "standard" and targets.ndim == 1
    if labelled and not targets.is_floating_point():
        labels = targets.numpy().astype(np.int64)
    rows = choose_images(labels, MOST)
    at, layer = torch.from_numpy(rows), _layer(mapped.run, store)
    # Numbers in the whole set also where a part of it was read.
    whole, part = (np.asarray(each.rows) for each in (mapped.dataset, stored.dataset))
    order = np.argsort(whole)
    numbers = order[np.searchsorted(whole[order], part[store.indices[at].numpy()])]
    known = list(stored.classes[0].names) if stored.classes else []
    classes = known or [str(number) for number in range(int(labels.max(initial=-1)) + 1)]
    layers = (rows_at(each.layer(layer), at).flatten(1).float() for each in (untrained, store))
    without, trained = layers
    paths = [store.paths[row] for row in rows]
    return MappedFeatures(numbers, paths, labels[rows], classes, without, trained, fingerprint)


def _layer(run: Run, store: Store) -> str:
    """The deepest of several."""
    pooled = read(run.config, ModelOptions).FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP
    names = [file_name(each[0]) for each in pooled]
    return next((each for each in reversed(names) if each in store.layers), store.layers[-1])


def choose_images(labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Choose ascending rows, evenly apart, of each class as many where there are labels."""
    if len(labels) <= most:
        return np.arange(len(labels))
    members = [np.flatnonzero(labels == each) for each in np.unique(labels) if each >= 0]
    groups = sorted(members or [np.arange(len(labels))], key=len)
    chosen: list[NDArray[np.int64]] = []
    left = most
    for place, group in enumerate(groups):  # what a small class leaves is the others'
        count = min(len(group), left // (len(groups) - place))
        chosen.append(spread(group, count))
        left -= count
    return np.sort(np.concatenate(chosen))


def spread(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return so many of the rows, evenly apart."""
    return rows[np.arange(count) * len(rows) // max(1, count)]
