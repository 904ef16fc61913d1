"""One answer for every way to be asked: the same batches for any number of workers and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.data.collators import Batch
from sslengine.data.feed import DataFeed
from sslengine.data.options import (
    DataOptions,
    PowerLawSampler,
    SplitOptions,
    StratifiedSampler,
)
from tests.data.pictures import write_tree

COUNT, SEED = 24, 3
VIEWS = [
    {"name": "ImgReplicatePil"},
    {"name": "RandomResizedCrop", "size": 8},
    {"name": "ImgPilColorDistortion", "strength": 0.5},
    {"name": "ImgPilGaussianBlur"},
    {"name": "ToTensor"},
    {"name": "MaskedImageModeling", "patch_size": 2},
]
SAMPLERS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "in order": {"USE_DEBUGGING_SAMPLER": True},
    "stratified": {
        "STRATIFIED_SAMPLER": StratifiedSampler(True, CLASSES_PER_BATCH=1, STEP_PER_EPOCH=5)
    },
    "power law": {"POWER_LAW_SAMPLER": PowerLawSampler(True, 1.0)},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures in folders by class and in a list; one of them is broken."""
    folder = tmp_path_factory.mktemp("pictures")
    names = [f"class_{number % 3}/{number:02}.png" for number in range(COUNT)]
    write_tree(folder / "tree", *names)
    (folder / "tree" / names[5]).write_bytes(b"no picture")
    np.save(folder / "list.npy", [str(folder / "tree" / name) for name in names])
    np.save(folder / "labels.npy", np.arange(COUNT) % 3)
    return folder


SOURCES = ("disk_folder", "disk_filelist", "synthetic", "shapes")


def keys_of(source: str, root: Path) -> dict[str, Any]:
    paths = {"disk_folder": [str(root / "tree")], "disk_filelist": [str(root / "list.npy")]}
    keys: dict[str, Any] = {
        "DATA_SOURCES": [source],
        "DATA_PATHS": paths.get(source, []),
        "LABEL_SOURCES": [source],
        "DATA_LIMIT": COUNT,
        "DEFAULT_GRAY_IMG_SIZE": 12,
        "ENABLE_QUEUE_DATASET": True,
        "RANDOM_SYNTHETIC_IMAGES": True,
        "RANDOM_SYNTHETIC_LABELS": 3,
    }
    if source == "disk_filelist":
        keys |= {"LABEL_PATHS": [str(root / "labels.npy")]}
    return keys


def feed(
    root: Path,
    source: str = "disk_folder",
    workers: int = 0,
    ranks: int = 1,
    rank: int = 0,
    training: bool = True,
    **keys: Any,
) -> DataFeed:
    split = SplitOptions(
        BATCHSIZE_PER_REPLICA=8 // ranks, TRANSFORMS=VIEWS,
        COLLATE_FUNCTION="simclr_collator", **keys_of(source, root), **keys,
    )  # fmt: skip
    options = DataOptions(TRAIN=split, TEST=split, NUM_DATALOADER_WORKERS=workers)
    name = "TRAIN" if training else "TEST"
    return DataFeed(options, name, training=training, seed=SEED, rank=rank, world_size=ranks)


def same(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            assert torch.equal(one[key][0], other[key][0]), key


@pytest.mark.parametrize("source", SOURCES)
def test_any_number_of_workers_gives_the_same_batches(root: Path, source: str) -> None:
    alone = feed(root, source)
    for workers in (1, 3):
        some = feed(root, source, workers)
        try:
            for epoch in (0, 4):
                same(list(some.batches(epoch)), list(alone.batches(epoch)))
            # Went on from another number of workers, in the middle of an epoch.
            same(list(some.batches(4, 2)), list(alone.batches(4))[2:])
        finally:
            some.close()


def of_all_ranks(root: Path, ranks: int, **keys: Any) -> Iterator[Batch]:
    """The global batches: of each view the images of all ranks."""
    feeds = [feed(root, ranks=ranks, rank=rank, **keys) for rank in range(ranks)]
    for parts in zip(*(each.batches(2) for each in feeds), strict=True):
        yield {
            key: [
                torch.cat([torch.cat(each) for each in zip(*(p[key][0].chunk(2) for p in parts))])
            ]
            for key in parts[0]
        }


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_any_number_of_ranks_shares_the_same_global_batches(
    root: Path, sampler: str, ranks: int
) -> None:
    keys = SAMPLERS[sampler]
    same(list(of_all_ranks(root, ranks, **keys)), list(of_all_ranks(root, 1, **keys)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_test_samples_are_the_same_on_any_number_of_ranks(root: Path, ranks: int) -> None:
    alone = list(of_all_ranks(root, 1, training=False))
    same(list(of_all_ranks(root, ranks, training=False)), alone)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_epoch_goes_on_with_another_number_of_ranks(root: Path, sampler: str) -> None:
    keys = SAMPLERS[sampler]
    whole = list(of_all_ranks(root, 1, **keys))
    for first in range(len(whole) + 1):
        parts = [feed(root, ranks=2, rank=rank, **keys).batches(2, first) for rank in range(2)]
        seen = [
            torch.cat([part["data_idx"][0].chunk(2)[0] for part in each])
            for each in zip(*parts, strict=True)
        ]
        expected = [batch["data_idx"][0].chunk(2)[0] for batch in whole[first:]]
        assert [each.tolist() for each in seen] == [each.tolist() for each in expected]


def test_samplers_differ_in_their_order_alone(root: Path) -> None:
    """A sample is what it is, whoever asks for it."""
    images: dict[int, torch.Tensor] = {}
    orders = set()
    for keys in SAMPLERS.values():
        batches = list(feed(root, **keys).batches(2))
        orders.add(tuple(int(i) for batch in batches for i in batch["data_idx"][0].chunk(2)[0]))
        for batch in batches:
            for index, image in zip(*(batch[key][0].chunk(2)[0] for key in ("data_idx", "data"))):
                assert torch.equal(images.setdefault(int(index), image), image)
    assert len(orders) == len(SAMPLERS)
    assert len(images) == COUNT


def test_samples_in_their_order_are_the_same_in_every_epoch(root: Path) -> None:
    some = feed(root, USE_DEBUGGING_SAMPLER=True)
    for epoch in (0, 3):
        seen = [int(i) for b in some.batches(epoch) for i in b["data_idx"][0].chunk(2)[0]]
        assert seen == list(range(COUNT))
    first, other = (next(some.batches(epoch))["data"][0] for epoch in (0, 3))
    assert not torch.equal(first, other)  # augmented anew


def test_classes_are_read_for_samplers_where_samples_carry_other_labels(root: Path) -> None:
    keys = {"STRATIFIED_SAMPLER": StratifiedSampler(True, CLASSES_PER_BATCH=2, STEP_PER_EPOCH=4)}
    some = feed(root, LABEL_TYPE="sample_index", **keys)
    for batch in some.batches():
        index = batch["data_idx"][0].chunk(2)[0]
        assert torch.equal(batch["label"][0].chunk(2)[0], index)
        # Numbers are those of the sorted paths: eight of each class, one class after the other.
        assert sorted((index // 8).bincount().tolist())[-2:] == [4, 4]
