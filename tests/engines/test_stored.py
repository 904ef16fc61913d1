"""Features of a split in stores: the same files whoever computes them, and each computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.engines.features import pixels
from sslengine.engines.stored import Network, StoredSplit, store_split
from sslengine.evaluation import store as module
from sslengine.evaluation.store import Store
from tests.data.pictures import write_picture
from tests.engines.runs import make_run, screen
from tests.ranks import RankPool

IMAGES = 19
MEANS = Network("means", lambda images: {"mean": images.mean((2, 3))}, {"what": "means"})
PIXELS = Network("pixels", pixels, {"what": "pixels"})


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes; one file is not an image."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(IMAGES):
        path = folder / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(exist_ok=True)
        write_picture(path, number, 16)
    (folder / "b" / "05.png").write_bytes(b"no image")
    return folder


def stored(
    folder: Path, photos: Path, *networks: Network, **changes: Any
) -> tuple[StoredSplit, str]:
    split = {"DATA_SOURCES": ["disk_folder"], "LABEL_SOURCES": ["disk_folder"],
             "DATA_PATHS": [str(photos)], "DATA_LIMIT": -1, "BATCHSIZE_PER_REPLICA": 3,
             "TRANSFORMS": [{"name": "ToTensor"}], "COLLATE_FUNCTION": "default_collate",
             "DROP_LAST": False, "LABEL_TYPE": "standard"}  # fmt: skip
    values = {f"DATA__TRAIN__{key}": value for key, value in {**split, **changes}.items()}
    run = make_run(folder, "evaluate", LOSS={"name": "CrossEntropyLoss"}, **values)
    with pytest.MonkeyPatch.context() as patch:  # also in the processes of other ranks
        patch.setattr(module, "SMALLEST", 4)
        patch.setattr(module, "LARGEST", 4)
        found = store_split(run, "TRAIN", networks or (MEANS, PIXELS), folder)
    return found, screen(run)


def on_rank(folder: Path, photos: Path) -> int:
    return stored(folder, photos)[0].unreadable


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.npy")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> tuple[Path, StoredSplit]:
    folder = tmp_path_factory.mktemp("alone")
    return folder, stored(folder, photos)[0]


def test_a_row_for_each_image_that_can_be_read(alone: tuple[Path, StoredSplit]) -> None:
    _, found = alone
    means = found.stores["means"]
    assert found.unreadable == 1
    assert len(means.indices) == IMAGES - 1
    assert len(means.shards()) == 5
    assert means.layer("mean").shape == (IMAGES - 1, 3)
    assert [each.names for each in found.classes] == [("a", "b")]
    # Classes in the order of the folder: ten of "a", then the readable ones of "b".
    assert means.targets.tolist() == [0] * 10 + [1] * 8
    rows: Tensor = found.stores["pixels"].layer("16x16").tensor().view(-1, 3, 256).mean(2)
    torch.testing.assert_close(rows, means.layer("mean").tensor())


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_write_the_same_files(
    ranks: int, alone: tuple[Path, StoredSplit], photos: Path, tmp_path: Path
) -> None:
    with RankPool(ranks) as pool:
        unreadable = pool.run(on_rank, tmp_path, photos)
    assert sum(unreadable) == 1
    assert contents(tmp_path) == contents(alone[0])


def test_only_what_is_missing_is_computed(photos: Path, tmp_path: Path) -> None:
    """After a kill: a shard without its indices. And for a network more: its features alone."""
    seen: list[int] = []

    def means(images: Tensor) -> dict[str, Tensor]:
        seen.append(len(images))
        return MEANS.compute(images)

    counted = Network("means", means, MEANS.depends_on)
    found, said = stored(tmp_path, photos, counted)
    assert sum(seen) == IMAGES - 1
    assert "computing features of 19 images: means" in said
    before = contents(tmp_path)
    next(found.stores["means"].folder.glob("00001.indices.npy")).unlink()
    seen.clear()
    _, said = stored(tmp_path, photos, counted, PIXELS)
    assert sum(seen) == 4
    assert "means, pixels" in said
    assert {**contents(tmp_path), **before} == contents(tmp_path)
    seen.clear()
    _, said = stored(tmp_path, photos, counted, PIXELS, BATCHSIZE_PER_REPLICA=4)
    assert not seen
    assert "features of 19 images are on the disk" in said


def test_another_view_or_another_image_is_another_store(photos: Path, tmp_path: Path) -> None:
    first = stored(tmp_path, photos)[0].stores["means"].folder
    flipped = [{"name": "RandomHorizontalFlip", "p": 1.0}, {"name": "ToTensor"}]
    assert stored(tmp_path, photos, TRANSFORMS=flipped)[0].stores["means"].folder != first
    other = Network("means", MEANS.compute, {"what": "other weights"})
    assert stored(tmp_path, photos, other)[0].stores["means"].folder != first
    copied = tmp_path / "photos"
    for path in photos.rglob("*.png"):
        place = copied / path.relative_to(photos)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    before = stored(tmp_path, copied)[0].stores["means"].folder
    write_picture(copied / "a" / "02.png", 77, 16)  # the same name, another image
    after = stored(tmp_path, copied)[0].stores["means"]
    assert after.folder != before
    rows = [each.layer("mean").tensor() for each in (after, Store.read(before))]
    assert [row.equal(other) for row, other in zip(*rows)] == [True, False, *[True] * 16]
