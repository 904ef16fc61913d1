from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.batch.collators import Batch
from sslengine.data.feed import FEWEST, DataFeed
from sslengine.data.loading.dataset import SampleBatch, collate_seeded
from sslengine.data.options import DataOptions, split_options
from sslengine.data.seeding import seed_sample
from sslengine.errors import DataError
from sslengine.registry import COLLATORS
from tests.data.pictures import picture, write_tree
from tests.data.probes import LEFT_TO_MAIN
from tests.ranks import end_fork_server

SIMCLR = [
    {"name": "ImgReplicatePil"},
    {"name": "RandomResizedCrop", "size": 16},
    {"name": "RandomHorizontalFlip"},
    {"name": "ImgPilColorDistortion", "strength": 0.5},
    {"name": "ImgPilGaussianBlur", "p": 0.5, "radius_min": 0.1, "radius_max": 2.0},
    {"name": "tests.data.probes:ProcessProbe"},
    {"name": "ToTensor"},
    {"name": "Normalize", "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]},
]
PROBED = ("pid", "threads", "ignored", "waits_for_sigterm", "heavy", "frozen", "marker")


def feed(workers: int = 0, *, training: bool = True, seed: int = 3, **keys: Any) -> DataFeed:
    timeout = keys.pop("WORKER_TIMEOUT", 1800.0)
    placing = {key: keys.pop(key) for key in ("rank", "world_size", "device") if key in keys}
    split = {
        "DATA_SOURCES": ["synthetic"],
        "RANDOM_SYNTHETIC_IMAGES": True,
        "DEFAULT_GRAY_IMG_SIZE": 20,
        "DATA_LIMIT": 22,
        "LABEL_TYPE": "sample_index",
        "BATCHSIZE_PER_REPLICA": 4,
        "TRANSFORMS": SIMCLR,
        "COLLATE_FUNCTION": "simclr_collator",
        **keys,
    }
    options = DataOptions(
        TRAIN=split_options(**split), NUM_DATALOADER_WORKERS=workers, WORKER_TIMEOUT=timeout
    )
    return DataFeed(options, "TRAIN", training=training, seed=seed, **placing)


def folder_feed(root: Path, training: bool = False, **keys: Any) -> DataFeed:
    folder = {
        "DATA_SOURCES": ["disk_folder"],
        "DATA_PATHS": [str(root)],
        "DATA_LIMIT": -1,
        "TRANSFORMS": [{"name": "Resize", "size": [8, 8]}, {"name": "ToTensor"}],
        "COLLATE_FUNCTION": "default_collate",
    }
    return feed(training=training, **{**folder, **keys})


def equal(ours: list[Batch], theirs: list[Batch]) -> bool:
    """Bit for bit, but for what tells the processes apart."""
    return len(ours) == len(theirs) and all(
        torch.equal(one[key][0], other[key][0])
        for one, other in zip(ours, theirs, strict=True)
        for key in one.keys() - set(PROBED)
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def alone() -> DataFeed:
    return feed(0)


@pytest.fixture(scope="module")
def three() -> Iterator[DataFeed]:
    """A feed with three workers, for all the tests of this file."""
    end_fork_server()
    shared = feed(3)
    yield shared
    shared.close()


def pids(batches: list[Batch]) -> set[int]:
    return {int(pid) for batch in batches for pid in batch["pid"][0]}


def test_the_number_of_workers_changes_nothing(alone: DataFeed, three: DataFeed) -> None:
    for epoch in (0, 1):
        assert equal(list(three.batches(epoch)), list(alone.batches(epoch)))
    assert not equal(list(alone.batches(0)), list(alone.batches(1)))


def asked_of_workers(some: DataFeed) -> int:
    iterator: Any = some._loader._loader._iterator  # type: ignore[union-attr]
    return int(iterator._send_idx)


@pytest.mark.parametrize("name", ["alone", "three"])
def test_an_epoch_may_be_loaded_before_it_is_asked_for(
    name: str, request: pytest.FixtureRequest, alone: DataFeed
) -> None:
    expected = [list(alone.batches(epoch)) for epoch in range(3)]
    some: DataFeed = request.getfixturevalue(name)
    first, steps = some.batches(0), some.steps_per_epoch
    some.then(1, 0, steps)
    some.then(2, 0, steps)  # one is enough
    assert equal(list(first), expected[0])
    if name == "three":  # all that they may hold: 2 batches each
        assert asked_of_workers(some) == steps + min(steps, 6)
    second = some.batches(1)
    some.then(2, 2, 3)
    assert equal(list(second), expected[1])
    assert equal(list(some.batches(2)), expected[2])  # not what was said
    third = some.batches(0, 1, 3)
    some.then(1, 0, steps)
    next(third)
    assert equal(list(some.batches(1)), expected[1])  # the one before has not been used up
    assert equal(list(some.batches(1)), expected[1])


@pytest.mark.parametrize("collator", ["simclr_collator", "cutmixup_collator"])
def test_images_are_those_of_the_plain_list(tmp_path: Path, collator: str) -> None:
    """Also for a collator that computes with them, to which they come as floats."""
    write_tree(tmp_path, *(f"{number}.png" for number in range(4)))
    (batch,) = folder_feed(tmp_path, TRANSFORMS=SIMCLR, COLLATE_FUNCTION=collator).batches()
    pipeline, samples = Pipeline(SIMCLR, "here"), []
    for index in range(4):
        seed_sample(3, (0, index))
        plain = {"data": [picture(index)], "data_valid": [1], "data_idx": [index], "label": [index]}
        samples.append(pipeline(plain))
    expected = collate_seeded(COLLATORS.get(collator), SampleBatch(samples, 3, [(0, 0)]))
    torch.testing.assert_close(batch["data"], expected["data"], rtol=0, atol=0)


def test_workers_start_once_and_for_good(three: DataFeed) -> None:
    first = pids(list(three.batches(0)))
    assert len(first) == 3
    assert os.getpid() not in first
    assert pids(list(three.batches(1))) == first
    assert pids(list(three.batches(1, 3))) <= first


def test_a_worker_is_light(three: DataFeed) -> None:
    for batch in three.batches(0):
        assert batch["threads"][0].unique().tolist() == [1]
        assert batch["ignored"][0].unique().tolist() == [len(LEFT_TO_MAIN)]
        assert batch["waits_for_sigterm"][0].unique().tolist() == [1]
        assert batch["heavy"][0].unique().tolist() == [0]
        assert batch["frozen"][0].min() > 1000  # objects that the garbage collector leaves alone


@pytest.mark.parametrize("name", ["alone", "three"])
def test_going_on_within_an_epoch(name: str, request: pytest.FixtureRequest) -> None:
    some: DataFeed = request.getfixturevalue(name)
    whole = list(some.batches(5))
    assert len(whole) == some.steps_per_epoch == 6
    assert equal(list(some.batches(5, 2)), whole[2:])
    assert equal(list(some.batches(5, 1, 4)), whole[1:4])
    abandoned = some.batches(5)
    next(abandoned)
    assert equal(list(some.batches(5)), whole)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_main_process_keeps_its_streams(workers: int) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    seed()
    expected = draw()
    seed()
    some = feed(workers)
    list(some.batches(0))
    some.close()
    assert draw() == expected


def test_closing_stops_the_workers() -> None:
    some = feed(2)
    workers = pids(list(some.batches(0)))
    assert all(map(alive, workers))
    some.close()
    deadline = time.monotonic() + 20
    while any(map(alive, workers)):
        assert time.monotonic() < deadline, "workers outlive their feed"
        time.sleep(0.01)


def test_unreadable_test_images_are_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tree(tmp_path, *(f"{number}.png" for number in range(6)))
    (tmp_path / "2.png").write_bytes(b"")
    (tmp_path / "5.png").write_text("not an image")
    some = folder_feed(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            batches = list(some.batches(0))
    assert [batch["data_idx"][0].tolist() for batch in batches] == [[0, 1], [3, 4]]
    assert all("unreadable" not in batch for batch in batches)
    for batch in batches:
        for image, number in zip(batch["data"][0], batch["data_idx"][0].tolist(), strict=True):
            pixels = (image * 255).permute(1, 2, 0).numpy()
            np.testing.assert_array_equal(pixels, np.asarray(picture(number)))
    assert some.unreadable == {2, 5}
    record, count = caplog.records
    assert "config.DATA.TRAIN: cannot read" in record.message
    assert "2.png (UnidentifiedImageError: the file is empty)" in record.message
    assert "2 of 6 samples could not be read so far" in count.message


@pytest.mark.parametrize("broken", [1, 30, 59])
def test_broken_images_at_any_rate_but_all_leave_every_step_its_batch(
    tmp_path: Path, broken: int
) -> None:
    names = [f"{number:02}.png" for number in range(60)]
    write_tree(tmp_path, *names)
    chosen = np.random.default_rng(broken).permutation(60)[:broken]
    for number in chosen:
        whole = (tmp_path / names[number]).read_bytes()
        (tmp_path / names[number]).write_bytes(whole[: len(whole) // 2])
    some = folder_feed(tmp_path, training=True)
    batches = list(some.batches(0))
    numbers = torch.cat([batch["data_idx"][0] for batch in batches]).tolist()
    assert len(numbers) == 60
    assert not set(numbers) & set(chosen.tolist())
    assert set(numbers) == set(range(60)) - set(chosen.tolist())
    assert all((batch["data_valid"][0] == 1).all() for batch in batches)
    assert torch.cat([batch["label"][0] for batch in batches]).tolist() == numbers
    assert some.unreadable == set(chosen.tolist())
    tested = folder_feed(tmp_path)
    numbers = torch.cat([batch["data_idx"][0] for batch in tested.batches(0)]).tolist()
    assert [number for number in numbers if number >= 0] == sorted(set(range(60)) - {*chosen})


def test_a_data_set_without_one_readable_image(tmp_path: Path) -> None:
    for number in range(FEWEST + 20):
        (tmp_path / f"{number:03}.jpg").touch()
    some = folder_feed(tmp_path)
    message = rf"none of the first {FEWEST} images can be read. One of them: .*\.jpg \(Unid"
    with pytest.raises(DataError, match=message):
        list(some.batches(0))


def test_dropping_test_samples_is_refused_aloud(caplog: pytest.LogCaptureFixture) -> None:
    split = split_options(DATA_SOURCES=["synthetic"], LABEL_TYPE="zero", DROP_LAST=True)
    some = DataFeed(
        DataOptions(TEST=split, NUM_DATALOADER_WORKERS=0), "TEST", training=False, seed=0
    )
    assert sum(some.batch_sizes) == some.num_samples == 50_000
    assert "config.DATA.TEST.DROP_LAST does nothing" in caplog.text


def _forgets(samples: Any) -> None:
    """Returns nothing."""


def test_a_collator_that_returns_nothing_is_named() -> None:
    with pytest.raises(DataError, match=r"the collator _forgets returned None"):
        collate_seeded(partial(_forgets), SampleBatch([], 3, [(0, 0)]))
