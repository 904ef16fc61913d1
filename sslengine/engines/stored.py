"""Several networks' features of a split, in one pass over its images, into stores on the disk.

Each image is read once for all networks. Every rank computes the shards whose number it
has (modulo the number of ranks), where they are missing: see sslengine/evaluate/store.py.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from sslengine.atomic import write_json
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.config.users_code import hash_of_users_code
from sslengine.data.fingerprint import hash_here, hash_labels, identify
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.distributed.collectives import barrier, broadcast_object
from sslengine.distributed.ranks import is_primary, rank, world_size
from sslengine.engine.build import build_run_precision
from sslengine.engines.features import Compute, Features, features_of, join, ordered_feed
from sslengine.engines.run import Run
from sslengine.evaluate.store import Shard, Store, short_name
from sslengine.precision import Precision
from sslengine.progress import progress

log = logging.getLogger("sslengine")

# In the store of the first network: what identifies the images that were read.
IMAGES = "images.json"
# Options of a split that do not change an image's features.
WITHOUT_EFFECT = ("BATCHSIZE_PER_REPLICA", "DROP_LAST", "READ_RETRIES", "READ_RETRY_WAIT")


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
        """The images and their classes. Nothing is read again for features that are kept."""
        file = next(iter(self.stores.values())).folder / IMAGES
        try:
            found = json.loads(file.read_bytes())
        except (OSError, ValueError):
            found = identify(self.dataset, options.DATA_PATHS)
            with suppress(OSError):  # others' features, which cannot be added to
                write_json(file, found)
        labelled = options.LABEL_TYPE == "standard"
        return {**found, "labels": hash_labels(self.dataset)} if labelled else found


def paths_of(dataset: SSLDataset, indices: Tensor, relative: bool = False) -> list[str]:
    """Return the paths of images of the first source; relative: below its folder."""
    rows, source = dataset.rows, dataset.sources[0]
    path = source.relative_path if relative else source.path
    return [path(int(rows[each])) for each in indices.tolist()]


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
    precision = build_run_precision(run.config, run.device)
    stores: dict[str, Store] = {}
    work: list[tuple[Shard, list[str]]] = []

    def plan(dataset: SSLDataset) -> list[range]:
        view = _of_images(options, dataset, run)
        format = {"precision": precision.name, "dtype": dtype}
        for each in networks:
            depends_on = {**view, **format, **each.depends_on}
            path = folder / f"{split.lower()}-{short_name(depends_on)}"
            stores[each.name] = Store.make(path, depends_on, len(dataset), dtype=dtype)
        _announce(run, split, stores)
        work.extend(_of_this_rank(stores))
        size = options.BATCHSIZE_PER_REPLICA
        return [piece for shard, _ in work for piece in _pieces(shard.images, size)]

    feed = ordered_feed(run.config, split, run.device, classes, plan, data)
    try:
        batches = feed.batches() if work else iter(())
        count = sum(len(shard.images) for shard, _ in work)
        with progress(_stage(split, work), count, then=then) as step:
            for shard, missing in work:
                pieces = _pieces(shard.images, options.BATCHSIZE_PER_REPLICA)
                some = _counted(islice(batches, len(pieces)), map(len, pieces), step)
                needed = [each for each in networks if each.name in missing]
                for name, found in _computed(needed, some, options, precision).items():
                    paths = paths_of(feed.dataset, found.indices, relative=True)
                    stores[name].write(shard, found.layers, found.targets, found.indices, paths)
            barrier()
        return StoredSplit(stores, feed.classes, len(feed.unreadable), feed.dataset)
    finally:
        feed.close()


def _announce(run: Run, split: str, stores: Mapping[str, Store]) -> None:
    new = [name for name, store in stores.items() if store.missing()]
    images = next(iter(stores.values())).samples
    if new:
        log.info("%s: computing features of %d images: %s", split.lower(), images, ", ".join(new))
    else:
        run.say(f"{split.lower()}: features of {images} images are on the disk")


def _stage(split: str, work: Sequence[tuple[Shard, list[str]]]) -> str:
    names = {name: None for _, missing in work for name in missing}
    by = next(iter(names), "") if len(names) < 2 else f"{len(names)} networks"
    return f"features of {split.lower()}{f' by {by}' if by else ''}"


def _counted(batches: Iterator[Any], sizes: Iterator[int], step: Callable[[int], None]) -> Any:
    for batch, size in zip(batches, sizes):
        yield batch
        step(size)


def _of_this_rank(stores: Mapping[str, Store]) -> Iterator[tuple[Shard, list[str]]]:
    """Shards, and the networks whose features of it are missing."""
    missing = {name: {each.number for each in store.missing()} for name, store in stores.items()}
    for shard in next(iter(stores.values())).shards():
        names = [name for name in stores if shard.number in missing[name]]
        if names and shard.number % world_size() == rank():
            yield shard, names


def _computed(
    networks: Sequence[Network], batches: Iterator[Any], options: SplitOptions, precision: Precision
) -> dict[str, Features]:
    parts: dict[str, list[Features]] = {each.name: [] for each in networks}
    for batch in batches:
        for each in networks:
            parts[each.name].append(features_of(batch, each.compute, options, precision))
    return {name: join(some) for name, some in parts.items()}


def _of_images(options: SplitOptions, dataset: SSLDataset, run: Run) -> dict[str, Any]:
    """What features depend on in addition to the network: the view and the images."""
    view = {key: value for key, value in vars(options).items() if key not in WITHOUT_EFFECT}
    seed = read(run.config, RunOptions).SEED_VALUE
    hashes = {}
    if is_primary():
        hashes = {"images_sha256": hash_here(dataset), **hash_of_users_code(run.config)}
    return {"view": view, "seed": seed, **broadcast_object(hashes)}


def _pieces(images: range, size: int) -> list[range]:
    return [images[start : start + size] for start in range(0, len(images), size)]
