"""Features of a whole dataset: every sample once, in its order, in stores or in VISSL's files.

`store_split` computes several networks' features of a split in one pass over its images, into
stores on the disk (see sslengine/evaluate/store.py). Every rank computes the shards whose number it
has (modulo the number of ranks), where they are missing.

The engine `extract_features` writes `rank0_chunk0_train_res5_{features,targets,inds}.npy` by the
weights of config.MODEL.WEIGHTS_INIT, or of the newest checkpoint of the run's folder;
config.MODEL.FEATURE_EVAL_SETTINGS chooses the layers.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.atomic import write_json, write_whole
from sslengine.config.facts import unique_names
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.config.users_code import hash_of_users_code
from sslengine.data.feed import DataFeed
from sslengine.data.fingerprint import hash_here, hash_labels, identify
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.distributed.collectives import barrier, broadcast_object
from sslengine.distributed.ranks import is_primary, rank, world_size
from sslengine.engine.build import build_run_precision
from sslengine.engine.passes import trunk_of
from sslengine.engine.step import single_input_sample
from sslengine.engines.options import ExtractFeaturesOptions
from sslengine.engines.run import Run
from sslengine.evaluate.store import Shard, Store, short_name
from sslengine.models.model import Model
from sslengine.models.routing import Route
from sslengine.precision import Precision
from sslengine.progress import progress
from sslengine.registry import register_engine
from sslengine.trained import load_here

log = logging.getLogger("sslengine")

# Input of the model -> features by layer.
Compute = Callable[[Any], dict[str, Tensor]]
# In the store of the first network: what identifies the images that were read.
IMAGES = "images.json"
# Options of a split that do not change an image's features.
WITHOUT_EFFECT = ("BATCHSIZE_PER_REPLICA", "DROP_LAST", "READ_RETRIES", "READ_RETRY_WAIT")


@dataclass(frozen=True)
class Features:
    """Features on the host. layers: by their names in the config."""

    layers: dict[str, Tensor]
    targets: Tensor
    indices: Tensor


def join(parts: Sequence[Features]) -> Features:
    """Concatenate batches."""
    return Features(
        {name: torch.cat([part.layers[name] for part in parts]) for name in parts[0].layers},
        torch.cat([part.targets for part in parts]),
        torch.cat([part.indices for part in parts]),
    )


def ordered_feed(
    config: DictConfig,
    split: str,
    device: torch.device,
    classes: Sequence[Classes] = (),
    stretches: Callable[[SSLDataset], Sequence[range]] | None = None,
    data: DataOptions | None = None,
) -> DataFeed:
    """Load the split without shuffling, each sample once over all ranks.

    classes: those of TRAIN. stretches: see DataFeed. data: in place of config.DATA.
    """
    run = read(config, RunOptions)
    return DataFeed(
        data or read(config, DataOptions), split, training=False, seed=run.SEED_VALUE, rank=rank(),
        world_size=world_size(), device=device, mp_method=run.MULTI_PROCESSING_METHOD,
        classes=classes, stretches=stretches,
    )  # fmt: skip


def extract(
    compute: Compute, feed: DataFeed, options: SplitOptions, precision: Precision
) -> Iterator[Features]:
    """Compute the features of this rank's batches."""
    with progress("computing features", sum(feed.batch_sizes)) as step:
        for number, batch in enumerate(feed.batches()):
            yield features_of(batch, compute, options, precision)
            step(feed.batch_sizes[number])


@torch.no_grad()
def features_of(
    batch: Any, compute: Compute, options: SplitOptions, precision: Precision
) -> Features:
    sample = single_input_sample(batch, options.INPUT_KEY_NAMES, options.TARGET_KEY_NAMES)
    with precision.autocast():
        layers = precision.as_full(compute(sample["input"]))
    indices = sample["data_idx"].cpu()
    read = indices >= 0  # the placeholder for a batch of unreadable images has index -1
    rows = {name: features.cpu()[read] for name, features in layers.items()}
    return Features(rows, sample["target"].cpu()[read], indices[read])


def layers_of(any_model: nn.Module) -> Compute:
    """Return a function: input -> outputs by name, in eval mode; of a custom model its trunk's."""
    custom = not isinstance(any_model, Model)
    model: Any = Model(trunk_of(any_model), nn.ModuleList(), [Route()]) if custom else any_model

    def compute(images: Any) -> dict[str, Tensor]:
        model.eval()
        outputs = model(images)
        return dict(zip(_layer_names(model, len(outputs)), outputs, strict=True))

    return compute


def _layer_names(model: Model, count: int) -> list[str]:
    """Name the trunk's features, or the heads."""
    route = model.routes[0]
    if route.heads:
        return ["heads"] if count == 1 else [f"heads{index}" for index in range(count)]
    return unique_names(list(route.features) or [model.trunk.feature_names[-1]])


def pixels(images: Tensor) -> dict[str, Tensor]:
    """Average the image to 16 x 16: the baseline for all features.

    kNN scores higher on it than on the full image, and a linear probe takes seconds.
    """
    return {"16x16": F.adaptive_avg_pool2d(images, 16).flatten(1)}


def paths_of(dataset: SSLDataset, indices: Tensor, relative: bool = False) -> list[str]:
    """Return the paths of images of the first source; relative: below its folder."""
    rows, source = dataset.rows, dataset.sources[0]
    path = source.relative_path if relative else source.path
    return [path(int(rows[each])) for each in indices.tolist()]


# ---- stores


@dataclass(frozen=True)
class Network:
    """One kind of features: what computes them, and all that they depend on but the images."""

    name: str
    compute: Compute
    depends_on: Mapping[str, Any]
    # For the report.
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredSplit:
    """A split's stores, one for each network; the same on every rank."""

    stores: dict[str, Store]
    classes: list[Classes]
    unreadable: int
    dataset: SSLDataset

    def identified(self, options: SplitOptions) -> dict[str, Any]:
        """Identify images and classes. Nothing is read again for features that are kept."""
        file = next(iter(self.stores.values())).folder / IMAGES
        try:
            found = json.loads(file.read_bytes())
        except (OSError, ValueError):
            found = identify(self.dataset, options.DATA_PATHS)
            with suppress(OSError):  # others' features, which cannot be added to
                write_json(file, found)
        labelled = options.LABEL_TYPE == "standard"
        return {**found, "labels": hash_labels(self.dataset)} if labelled else found


def store_split(
    run: Run,
    split: str,
    networks: Sequence[Network],
    folder: Path,
    classes: Sequence[Classes] = (),
    dtype: str = "float32",
    data: DataOptions | None = None,
    then: str = "",
) -> StoredSplit:
    """Compute what is missing. Collective.

    classes: those of TRAIN, for another split. data: in place of config.DATA. then: what follows.
    """
    data = data or read(run.config, DataOptions)
    options: SplitOptions = getattr(data, split)
    size, precision = options.BATCHSIZE_PER_REPLICA, build_run_precision(run.config, run.device)
    stores: dict[str, Store] = {}
    work: list[tuple[Shard, list[Network]]] = []  # of this rank: what lacks a shard

    def plan(dataset: SSLDataset) -> list[range]:
        view = _of_images(options, dataset, run)
        for each in networks:
            depends_on = {**view, "precision": precision.name, "dtype": dtype, **each.depends_on}
            path = folder / f"{split.lower()}-{short_name(depends_on)}"
            stores[each.name] = Store.make(path, depends_on, len(dataset), dtype=dtype)
        missing = {name: store.missing() for name, store in stores.items()}
        new = [name for name in stores if missing[name]]
        if new:
            text = "%s: computing features of %d images: %s"
            log.info(text, split.lower(), len(dataset), ", ".join(new))
        else:
            run.say(f"{split.lower()}: features of {len(dataset)} images are on the disk")
        own = stores[networks[0].name].shards()[rank() :: world_size()]
        work.extend(
            (shard, lacking) for shard in own
            if (lacking := [each for each in networks if shard in missing[each.name]])
        )  # fmt: skip
        return [piece for shard, _ in work for piece in _pieces(shard.images, size)]

    feed = ordered_feed(run.config, split, run.device, classes, plan, data)
    try:
        batches = feed.batches() if work else iter(())
        count = sum(len(shard.images) for shard, _ in work)
        with progress(_stage(split, work), count, then=then) as step:
            for shard, lacking in work:
                parts: dict[str, list[Features]] = {each.name: [] for each in lacking}
                pieces = _pieces(shard.images, size)
                for batch, piece in zip(islice(batches, len(pieces)), pieces):
                    for each in lacking:
                        some = features_of(batch, each.compute, options, precision)
                        parts[each.name].append(some)
                    step(len(piece))
                for name, computed in parts.items():
                    found = join(computed)
                    paths = paths_of(feed.dataset, found.indices, relative=True)
                    stores[name].write(shard, found.layers, found.targets, found.indices, paths)
            barrier()
        return StoredSplit(stores, feed.classes, len(feed.unreadable), feed.dataset)
    finally:
        feed.close()


def _stage(split: str, work: Sequence[tuple[Shard, Sequence[Network]]]) -> str:
    names = {each.name: None for _, lacking in work for each in lacking}
    by = next(iter(names), "") if len(names) < 2 else f"{len(names)} networks"
    return f"features of {split.lower()}{f' by {by}' if by else ''}"


def _of_images(options: SplitOptions, dataset: SSLDataset, run: Run) -> dict[str, Any]:
    """Name what features depend on in addition to the network: the view and the images."""
    view = {key: value for key, value in vars(options).items() if key not in WITHOUT_EFFECT}
    seed = read(run.config, RunOptions).SEED_VALUE
    hashes = {}
    if is_primary():
        hashes = {"images_sha256": hash_here(dataset), **hash_of_users_code(run.config)}
    return {"view": view, "seed": seed, **broadcast_object(hashes)}


def _pieces(images: range, size: int) -> list[range]:
    return [images[start : start + size] for start in range(0, len(images), size)]


# ---- VISSL's files


@register_engine("extract_features")
def extract_features(run: Run) -> None:
    options, data = read(run.config, ExtractFeaturesOptions), read(run.config, DataOptions)
    folder = Path(options.OUTPUT_DIR or run.run_dir / "features")
    model, weights = load_here(run.config, run.run_dir, run.device)
    precision = build_run_precision(run.config, run.device)
    run.describe()
    run.console.print(f"  weights     {weights}")
    folder.mkdir(parents=True, exist_ok=True)
    classes: list[Classes] = []
    for split in splits(run):  # TRAIN comes first
        feed = ordered_feed(run.config, split, run.device, classes)
        classes = feed.classes
        batches = extract(layers_of(model), feed, getattr(data, split), precision)
        for number, chunk in enumerate(chunks(batches, options.CHUNK_THRESHOLD)):
            prefix = f"rank{rank()}_chunk{number}_{split.lower()}"
            for layer, rows in chunk.layers.items():
                save(folder / f"{prefix}_{layer}_features.npy", rows.numpy())
                save(folder / f"{prefix}_{layer}_targets.npy", chunk.targets.numpy())
                save(folder / f"{prefix}_{layer}_inds.npy", chunk.indices.numpy())
        feed.close()
        run.console.print(f"{split.lower()}: features of {feed.num_samples} images in {folder}")
    barrier()


def splits(run: Run) -> list[str]:
    return ["TRAIN", "TEST"] if read(run.config, RunOptions).TEST_MODEL else ["TRAIN"]


def chunks(batches: Iterator[Features], images: int) -> Iterator[Features]:
    """Join batches up to `images` images; -1: all in one chunk, 0: one chunk per batch."""
    waiting: list[Features] = []
    for batch in batches:
        waiting.append(batch)
        if 0 <= images <= sum(len(each.indices) for each in waiting):
            yield join(waiting)
            waiting = []
    if waiting:
        yield join(waiting)


def save(path: Path, array: NDArray[Any]) -> None:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    write_whole(path, content.getvalue())
