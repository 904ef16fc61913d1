"""One answer for every way to be asked: the same batches for any number of workers and ranks.

By every source, in one sample, and by every back-end. What Pillow makes in the main process,
on one rank, is what all others have to give, bit by bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from sslengine.config.facts import why_not
from sslengine.data.batch.collators import Batch
from sslengine.data.feed import DataFeed
from sslengine.data.options import (
    DataOptions,
    PowerLawSampler,
    StratifiedSampler,
    split_options,
)
from tests.data.pictures import picture
from tests.data.sources.every import COUNT, INSTALLED, all_at_once, all_of_one_length
from tests.tail import slow_but

# dill, by which `datasets` makes its fingerprints, of types of pyarrow.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot .*MonthDayNano")

SEED, GLOBAL_BATCH = 3, 4
VIEWS = [
    {"name": "ImgReplicatePil"},
    {"name": "RandomResizedCrop", "size": 8},
    {"name": "RandomHorizontalFlip"},
    {"name": "ImgPilColorDistortion", "strength": 0.5},
    {"name": "ImgPilGaussianBlur"},
    {"name": "ToTensor"},
    {"name": "Normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
]
MASKED = [*VIEWS, {"name": "MaskedImageModeling", "patch_size": 2}]
# Each back-end in another number of loader workers, and on another number of ranks: what one
# of the two does, it does not do by looking at the other.
# The one with the most is the first: the server that workers are forked from imports what it needs.
WORKERS = {"numba": 8, "pil": 2}
RANKS = {"pil": 2, "numba": 4}
# A second of each worker. In that of Pillow it is enough.
SLOW_TO_IMPORT = "huggingface_dataset"
SAMPLERS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "in order": {"USE_DEBUGGING_SAMPLER": True},
    "stratified": {
        "STRATIFIED_SAMPLER": StratifiedSampler(True, CLASSES_PER_BATCH=1, STEP_PER_EPOCH=5)
    },
    "power law": {"POWER_LAW_SAMPLER": PowerLawSampler(True, 1.0)},
}

Keys = dict[str, Any]


@pytest.fixture(scope="module")
def every_source(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """One picture of the folder is broken: another stands in for it. Those of the list are JPEGs,
    which are decoded in another way."""
    root = tmp_path_factory.mktemp("every")
    keys = all_at_once(root)
    for file in (root / "disk_filelist").rglob("*.png"):
        Image.open(file).save(file, "JPEG", quality=90)
    (root / "disk_folder" / "img" / "2" / "05.png").write_bytes(b"no picture")
    return {**keys, "LABEL_TYPE": "sample_index", "TRANSFORMS": VIEWS}


@pytest.fixture(scope="module")
def folder(every_source: Keys) -> Keys:
    """The folder alone, with its three classes."""
    place = every_source["DATA_SOURCES"].index("disk_folder")
    return {
        "DATA_SOURCES": ["disk_folder"],
        "DATA_PATHS": [every_source["DATA_PATHS"][place]],
        "LABEL_SOURCES": ["disk_folder"],
        "TRANSFORMS": MASKED,
    }


@pytest.fixture(scope="module")
def unbroken(folder: Keys, tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """The same, with all pictures."""
    root = tmp_path_factory.mktemp("unbroken") / "img"
    shutil.copytree(folder["DATA_PATHS"][0], root)
    (broken,) = root.rglob("2/05.png")
    picture(99, side=20).save(broken)
    return {**folder, "DATA_PATHS": [str(root)]}


def feed(
    keys: Keys,
    *,
    backend: str = "pil",
    workers: int = 0,
    ranks: int = 1,
    rank: int = 0,
    training: bool = True,
) -> DataFeed:
    split = split_options(
        BATCHSIZE_PER_REPLICA=GLOBAL_BATCH // ranks, DEFAULT_GRAY_IMG_SIZE=12,
        **keys,
    )  # fmt: skip
    options = DataOptions(TRAIN=split, NUM_DATALOADER_WORKERS=workers, AUGMENT_BACKEND=backend)
    with all_of_one_length():
        return DataFeed(options, "TRAIN", training=training, seed=SEED, rank=rank, world_size=ranks)


def of_all_ranks(ranks: int, keys: Keys, **more: Any) -> Iterator[Batch]:
    """The global batches: of each view the images of all ranks that could be read."""
    feeds = [feed(keys, ranks=ranks, rank=rank, **more) for rank in range(ranks)]
    for parts in zip(*(each.batches(2) for each in feeds), strict=True):
        read = [part["data_idx"][0] >= 0 for part in parts]
        yield {
            key: [
                torch.cat([view[rows] for view, rows in zip(views, read, strict=True)])
                for views in zip(*(part[key] for part in parts), strict=True)
            ]
            for key in parts[0]
        }


def same(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            for number, pair in enumerate(zip(one[key], other[key], strict=True)):
                assert torch.equal(*pair), (key, number)


def indices(batch: Batch) -> Tensor:
    values: Tensor = batch["data_idx"][0]
    return values


@pytest.fixture(scope="module")
def expected(every_source: Keys) -> dict[int, list[Batch]]:
    """By Pillow, in the main process: some epochs of all sources at once."""
    alone = feed(every_source)
    return {epoch: list(alone.batches(epoch)) for epoch in (0, 2)}


@pytest.fixture(params=slow_but(["pil"], WORKERS))
def backend(request: pytest.FixtureRequest) -> str:
    if problem := why_not(request.param):
        pytest.skip(problem)
    return str(request.param)


def test_samples_differ_where_they_should(expected: dict[int, list[Batch]]) -> None:
    """Else the tests below would say nothing."""
    views = torch.stack(
        [image for batch in expected[0] for view in batch["data"] for image in view]
    )
    assert len(views) == COUNT * 2 * len(INSTALLED)
    assert len(views.unique(dim=0)) > 0.95 * len(views)
    first, other = (torch.cat([indices(batch) for batch in expected[epoch]]) for epoch in (0, 2))
    for numbers in (first.tolist(), other.tolist()):
        # One cannot be read, and another stands for it.
        assert (len(numbers), len(set(numbers))) == (COUNT, COUNT - 1)
    assert set(first.tolist()) == set(other.tolist())
    assert first.tolist() != other.tolist()


def test_every_source_and_back_end_in_workers(
    every_source: Keys, expected: dict[int, list[Batch]], backend: str
) -> None:
    same(list(feed(every_source, backend=backend).batches(2)), expected[2])
    if backend != "pil":
        every_source = without(SLOW_TO_IMPORT, every_source)
        alone = feed(every_source)
        expected = {epoch: list(alone.batches(epoch)) for epoch in expected}
    some = feed(every_source, backend=backend, workers=WORKERS[backend])
    try:
        same(list(some.batches(2)), expected[2])
        # Goes on from another number of workers, in the middle of another epoch.
        same(list(some.batches(0, 3)), expected[0][3:])
    finally:
        some.close()


def without(name: str, keys: Keys) -> Keys:
    """The keys of a split for all other sources."""
    kept = [number for number, each in enumerate(keys["DATA_SOURCES"]) if each != name]
    of_each = ("DATA_SOURCES", "DATA_PATHS", "DATASET_NAMES")
    return keys | {key: [keys[key][number] for number in kept] for key in of_each}


def test_every_source_and_back_end_on_ranks(
    every_source: Keys, expected: dict[int, list[Batch]], backend: str
) -> None:
    shared = of_all_ranks(RANKS[backend], every_source, backend=backend)
    same(list(shared), expected[2])


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_any_number_of_ranks_shares_the_same_global_batches(
    folder: Keys, sampler: str, ranks: int
) -> None:
    keys = {**folder, **SAMPLERS[sampler]}
    same(list(of_all_ranks(ranks, keys)), list(of_all_ranks(1, keys)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_test_samples_are_the_same_on_any_number_of_ranks(folder: Keys, ranks: int) -> None:
    alone = list(of_all_ranks(1, folder, training=False))
    same(list(of_all_ranks(ranks, folder, training=False)), alone)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_epoch_goes_on_with_another_number_of_ranks(folder: Keys, sampler: str) -> None:
    keys = {**folder, **SAMPLERS[sampler]}
    whole = [indices(batch).tolist() for batch in of_all_ranks(1, keys)]
    two = [feed(keys, ranks=2, rank=rank) for rank in range(2)]
    for first in (0, 1, len(whole) - 1, len(whole)):
        parts = zip(*(each.batches(2, first) for each in two), strict=True)
        assert [torch.cat([*map(indices, each)]).tolist() for each in parts] == whole[first:]


def test_samplers_differ_in_their_order_alone(unbroken: Keys) -> None:
    """A sample is what it is, whoever asks for it."""
    images: dict[int, Tensor] = {}
    orders = set()
    for keys in SAMPLERS.values():
        batches = list(feed({**unbroken, **keys}).batches(2))
        orders.add(tuple(int(index) for batch in batches for index in indices(batch)))
        for batch in batches:
            for index, image in zip(indices(batch), batch["data"][0]):
                assert torch.equal(images.setdefault(int(index), image), image)
    assert len(orders) == len(SAMPLERS)
    assert len(images) == COUNT


def test_samples_in_their_order_are_the_same_in_every_epoch(unbroken: Keys) -> None:
    some = feed({**unbroken, "USE_DEBUGGING_SAMPLER": True})
    for epoch in (0, 3):
        assert torch.cat([*map(indices, some.batches(epoch))]).tolist() == list(range(COUNT))
    first, other = (next(some.batches(epoch))["data"][0] for epoch in (0, 3))
    assert not torch.equal(first, other)  # augmented again


def test_classes_are_read_for_samplers_where_samples_carry_other_labels(unbroken: Keys) -> None:
    keys = {"STRATIFIED_SAMPLER": StratifiedSampler(True, CLASSES_PER_BATCH=2, STEP_PER_EPOCH=4)}
    some = feed({**unbroken, **keys, "LABEL_TYPE": "sample_index"})
    # Numbers are those of the sorted paths: one class after the other.
    classes = torch.tensor(sorted(number % 3 for number in range(COUNT)))
    for batch in some.batches():
        assert torch.equal(batch["label"][0], indices(batch))
        assert sorted(classes[indices(batch)].bincount().tolist())[-2:] == [2, 2]
