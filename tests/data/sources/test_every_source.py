"""What holds for each source of encoded images: alone, beside another, in workers, resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extra_scripts.make_image_cache import Copies, write_part
from sslengine.data.dataset import SSLDataset
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.data.sources.disk import FolderSource
from sslengine.data.sources.image_cache import MANIFEST
from tests.data.pictures import picture, write_picture
from tests.data.sources.test_tar_shards import png, write_shard

COUNT = 12


def names(root: Path) -> list[str]:
    (root / "img").mkdir(parents=True, exist_ok=True)
    return [str(write_picture(root / "img" / f"{n % 3}" / f"{n:02}.png", n)) for n in range(COUNT)]


def folder(root: Path) -> Path:
    names(root)
    return root / "img"


def file_list(root: Path) -> Path:
    np.save(root / "list.npy", np.array(names(root)))
    return root / "list.npy"


def table(root: Path) -> Path:
    rows = [f"{name},{number % 3}" for number, name in enumerate(names(root))]
    (root / "list.csv").write_text("\n".join(["path,label", *rows]))
    return root / "list.csv"


def shards(root: Path) -> Path:
    for shard in range(3):
        members = {}
        for number in range(shard, COUNT, 3):
            members |= {f"{number:02}.png": png(number), f"{number:02}.cls": b"%d" % (number % 3)}
        write_shard(root / "shards" / f"{shard}.tar", members)
    return root / "shards"


def regions(root: Path) -> Path:
    entries = [{"path": name, "bbox": [0, 0, 8, 8]} for name in names(root)]
    (root / "boxes.json").write_text(json.dumps(entries))
    return root / "boxes.json"


def image_cache(root: Path) -> Path:
    source = FolderSource(SplitOptions(DATA_PATHS=[str(folder(root))]), "TRAIN")
    (root / "cache").mkdir()
    write_part(source, root / "cache", Copies(256, 0), 0)
    np.save(root / "cache" / "labels.npy", source.labels())
    told = {"version": 1, "of": "", "changes": "", "images": COUNT, "images_in_a_part": 1000}
    told |= {"not_resized": 0, "unreadable": 0}
    (root / "cache" / MANIFEST).write_text(json.dumps(told))
    return root / "cache"


SOURCES: dict[str, Callable[[Path], Path]] = {
    "disk_folder": folder,
    "disk_filelist": file_list,
    "csv_filelist": table,
    "webdataset": shards,
    "disk_roi_annotations": regions,
    "image_cache": image_cache,
}
LABELLED = ["disk_folder", "csv_filelist", "webdataset", "image_cache"]


@pytest.fixture(params=SOURCES)
def split(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    path = SOURCES[request.param](tmp_path)
    return {"DATA_SOURCES": [request.param], "DATA_PATHS": [str(path)]}


def numbers(data: SSLDataset) -> Iterator[int]:
    known = {picture(number).tobytes(): number for number in range(COUNT)}
    return (known[data[0, index]["data"][0].tobytes()] for index in range(len(data)))


def test_each_image_is_there_once_without_labels(split: dict[str, Any]) -> None:
    data = SSLDataset(SplitOptions(**split, LABEL_TYPE="sample_index"), "TRAIN", 0)
    assert sorted(numbers(data)) == list(range(COUNT))
    assert data[0, 5]["label"] == [5]


@pytest.mark.parametrize("name", LABELLED)
def test_labels_belong_to_their_images(name: str, tmp_path: Path) -> None:
    options = SplitOptions(
        DATA_SOURCES=[name], LABEL_SOURCES=[name], DATA_PATHS=[str(SOURCES[name](tmp_path))]
    )
    for keys in ({}, {"DATA_LIMIT": 6}):
        data = SSLDataset(SplitOptions(**{**vars(options), **keys}), "TRAIN", 0)
        found = list(numbers(data))
        assert [data[0, index]["label"] for index in range(len(data))] == [[n % 3] for n in found]
        assert len(found) == keys.get("DATA_LIMIT", COUNT)


def test_two_sources_at_once(split: dict[str, Any], tmp_path: Path) -> None:
    both = {
        "DATA_SOURCES": [*split["DATA_SOURCES"], "disk_filelist"],
        "DATA_PATHS": [*split["DATA_PATHS"], str(file_list(tmp_path / "second"))],
    }
    data = SSLDataset(SplitOptions(**both, LABEL_TYPE="zero"), "TRAIN", 0)
    first, second = data[0, 7]["data"]
    assert first.tobytes() in {picture(number).tobytes() for number in range(COUNT)}
    assert second.tobytes() == picture(7).tobytes()


def feed(split: dict[str, Any], workers: int) -> DataFeed:
    options = SplitOptions(
        **split,
        LABEL_TYPE="sample_index",
        BATCHSIZE_PER_REPLICA=2,
        TRANSFORMS=[{"name": "RandomResizedCrop", "size": 8}, {"name": "ToTensor"}],
    )
    data = DataOptions(TRAIN=options, NUM_DATALOADER_WORKERS=workers)
    return DataFeed(data, "TRAIN", training=True, seed=1)


def test_any_number_of_workers_and_going_on_within_an_epoch(split: dict[str, Any]) -> None:
    alone, two = feed(split, 0), feed(split, 2)
    expected = [batch["data"][0] for batch in alone.batches(3)]
    assert torch.stack(expected).unique(dim=0).shape[0] == COUNT // 2
    for some, start in ((two, 0), (two, 2), (alone, 4)):
        got = [batch["data"][0] for batch in some.batches(3, start)]
        assert len(got) == COUNT // 2 - start
        assert all(map(torch.equal, got, expected[start:]))
    two.close()
