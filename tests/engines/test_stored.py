"""Features of a split in stores: the same files whoever computes them, and each computed once."""

from __future__ import annotations

import csv
import io
import os
import signal
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from torch import Tensor

from sslengine.data.options import split_options
from sslengine.data.sources.base import build_sources
from sslengine.distributed.ranks import rank, world_size
from sslengine.engines.features import Network, StoredSplit, pixels, store_split
from sslengine.evaluate import store as module
from sslengine.evaluate.store import Store
from tests.data.pictures import picture, write_picture
from tests.engines.runs import make_run, screen
from tests.ranks import RankError, RankPool

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
    """And what is printed on stdout, which is not progress."""
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
    found = [path for path in folder.rglob("*") if path.suffix in (".npy", ".csv", ".json")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def killed_on_rank(folder: Path, photos: Path, files: int) -> None:
    """SIGKILL in the middle of a file, after so many; another rank waits for this one."""
    save, left = module._save, [files]

    def half(file: BinaryIO, rows: Tensor) -> None:
        left[0] -= 1
        if left[0] >= 0:
            save(file, rows)
            return
        whole = io.BytesIO()
        save(whole, rows)
        file.write(whole.getvalue()[: whole.tell() // 2])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    if rank() == world_size() - 1:
        module._save = half
    stored(folder, photos)


@pytest.mark.parametrize(
    ("ranks", "files"),
    [(1, 4), (2, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in (
        (1, 0), (1, 6), (1, 11), (2, 0), (2, 4)))],
)  # fmt: skip
def test_killed_in_the_middle_of_a_file(
    ranks: int, files: int, alone: tuple[Path, StoredSplit], photos: Path, tmp_path: Path
) -> None:
    """A shard has six files: features, targets and indices of two networks."""
    with pytest.raises(RankError), RankPool(ranks) as pool:
        pool.run(killed_on_rank, tmp_path, photos, files)
    halves = [*tmp_path.rglob("*.tmp")]  # another rank is ended by the pool, wherever it is
    assert any(each.stat().st_size > 0 for each in halves)
    before = contents(tmp_path)
    whole = contents(alone[0])
    assert before.items() < whole.items()
    with RankPool(ranks) as pool:
        pool.run(on_rank, tmp_path, photos)
    assert contents(tmp_path) == whole


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


def test_each_row_has_the_number_and_the_path_of_its_image(
    alone: tuple[Path, StoredSplit],
) -> None:
    """Below the folder of the images; another program reads the tables."""
    folder, found = alone
    wanted = [f"{'ab'[number % 2]}/{number:02d}.png" for number in range(IMAGES) if number != 5]
    assert found.stores["means"].paths == sorted(wanted)
    rows: list[list[str]] = []
    for path in sorted(found.stores["pixels"].folder.glob("*.rows.csv")):
        with path.open(newline="") as file:
            head, *more = csv.reader(file)
        assert head == ["index", "path"]
        rows += more
    assert [path for _, path in rows] == sorted(wanted)
    assert [int(index) for index, _ in rows] == found.stores["means"].indices.tolist()
    assert not any(
        b"ab" in each and str(folder).encode() in each for each in contents(folder).values()
    )


def test_names_of_images_that_are_no_files(tmp_path: Path) -> None:
    """Of a list: as it has them. Of a tar: the member. Of drawn images what they are called."""
    source = build_sources(split_options(DATA_SOURCES=["shapes"], DATA_LIMIT=4), "TRAIN")[0]
    assert source.relative_path(3) == source.path(3) == "image 3 of ShapesSource"
    (tmp_path / "some").mkdir()
    listed = [str(write_picture(tmp_path / "some" / f"{n}, ü.png", n)) for n in range(3)]
    np.save(tmp_path / "list.npy", np.array(listed))
    given = {"DATA_SOURCES": ["disk_filelist"], "DATA_PATHS": [str(tmp_path / "list.npy")],
             "LABEL_SOURCES": [], "LABEL_TYPE": "sample_index"}  # fmt: skip
    found = stored(tmp_path / "run", tmp_path, MEANS, **given)[0].stores["means"]
    assert found.paths == listed
    (tmp_path / "list.csv").write_text("path\n" + "\n".join(f'"some/{n}, ü.png"' for n in range(3)))
    given |= {"DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": [str(tmp_path / "list.csv")]}
    found = stored(tmp_path / "run", tmp_path, MEANS, **given)[0].stores["means"]
    assert found.paths == [f"some/{n}, ü.png" for n in range(3)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_write_the_same_files(
    ranks: int, alone: tuple[Path, StoredSplit], photos: Path, tmp_path: Path
) -> None:
    with RankPool(ranks) as pool:
        unreadable = pool.run(on_rank, tmp_path, photos)
    assert sum(unreadable) == 1
    assert contents(tmp_path) == contents(alone[0])


@pytest.mark.usefixtures("progress_at_once")
def test_only_what_is_missing_is_computed(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a kill: a shard without its indices. And for a network more: its features alone."""
    seen: list[int] = []

    def means(images: Tensor) -> dict[str, Tensor]:
        seen.append(len(images))
        return MEANS.compute(images)

    counted = Network("means", means, MEANS.depends_on)
    found, said = stored(tmp_path, photos, counted)
    assert sum(seen) == IMAGES - 1
    assert "features of train by means: 19 images in " in capsys.readouterr().err
    assert said == ""
    before = contents(tmp_path)
    next(found.stores["means"].folder.glob("00001.indices.npy")).unlink()
    seen.clear()
    stored(tmp_path, photos, counted, PIXELS)
    assert sum(seen) == 4
    assert "features of train by 2 networks: 19 images in " in capsys.readouterr().err
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


def test_an_array_that_is_written_again(tmp_path: Path) -> None:
    """Of the same size, with the images in another order."""
    images = np.stack([picture(number, 16) for number in range(6)])
    given = {"DATA_SOURCES": ["array_file"], "LABEL_SOURCES": [], "LABEL_TYPE": "sample_index",
             "DATA_PATHS": [str(tmp_path / "all.npz")]}  # fmt: skip
    found, prints = [], []
    for order in ([0, 1, 2, 3, 4, 5], [3, 1, 2, 0, 4, 5]):
        np.savez(tmp_path / "all.npz", images=images[order])
        split, _ = stored(tmp_path / "run", tmp_path, MEANS, **given)
        found.append(split.stores["means"].layer("mean").tensor())
        prints.append(split.identified(split_options(**given))["fingerprint"])
    assert found[1].equal(found[0][[3, 1, 2, 0, 4, 5]])
    assert prints[0] != prints[1]
