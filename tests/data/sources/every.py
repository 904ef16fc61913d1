"""A small data set for each source there is."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sslengine.data.sources import generated
from tests.data.pictures import picture, write_picture
from tests.data.sources.test_hugging_face import rows
from tests.data.sources.test_tar import png, write_shard
from tests.data.sources.test_torchvision_sets import write_mnist
from tests.data.sources.videos import write_lossless

COUNT = 32


def names(root: Path) -> list[str]:
    return [str(write_picture(root / "img" / f"{n % 3}" / f"{n:02}.png", n)) for n in range(COUNT)]


def folder(root: Path) -> Path:
    names(root)
    return root / "img"


def file_list(root: Path) -> Path:
    np.save(root / "list.npy", np.array(names(root)))
    return root / "list.npy"


def table(root: Path) -> Path:
    lines = [f"{name},{number % 3}" for number, name in enumerate(names(root))]
    (root / "list.csv").write_text("\n".join(["path,label", *lines]))
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


def hugging_face(root: Path) -> Path:
    datasets = importlib.import_module("datasets")
    rows(datasets, list(range(COUNT))).save_to_disk(str(root / "rows"))
    return root / "rows"


def videos(root: Path) -> Path:
    """Of one frame each."""
    for number in range(COUNT):
        write_lossless(root / "mov" / f"{number % 3}" / f"{number:02}.mov", [picture(number)])
    return root / "mov"


def array(root: Path) -> Path:
    images = np.stack([picture(number) for number in range(COUNT)])
    np.savez(root / "images.npz", images=images, labels=np.arange(COUNT) % 3)
    return root / "images.npz"


def mnist(root: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 28, 28), np.uint8)
    for part in ("train", "t10k"):
        write_mnist(root, part, pixels, np.arange(COUNT, dtype=np.uint8) % 10)
    return root


# Files, all of them with the pictures 0 to COUNT - 1.
OF_PICTURES: dict[str, Callable[[Path], Path]] = {
    "disk_folder": folder,
    "disk_filelist": file_list,
    "csv_filelist": table,
    "webdataset": shards,
    "array_file": array,
    "disk_roi_annotations": regions,
    "huggingface_dataset": hugging_face,
    "video": videos,
}
TAKES = {"huggingface_dataset": "datasets", "video": "av"}  # packages
DRAWN = ("shapes", "upright_shapes", "synthetic")
EVERY = (*OF_PICTURES, "torchvision_dataset", *DRAWN)
# Without random access: tests of their own, test_stream.py.
STREAMS = ("webdataset_stream", "huggingface_stream")
INSTALLED = [each for each in EVERY if each not in TAKES or find_spec(TAKES[each])]


def all_at_once(root: Path) -> dict[str, Any]:
    """Keys of a split whose samples have an image of each source."""
    files = {**OF_PICTURES, "torchvision_dataset": mnist}
    paths = []
    for name in INSTALLED:
        (root / name).mkdir()
        paths.append(str(files[name](root / name)) if name in files else "")
    return {
        "DATA_SOURCES": INSTALLED,
        "DATA_PATHS": paths,
        "DATASET_NAMES": ["MNIST" if each == "torchvision_dataset" else "" for each in INSTALLED],
        "RANDOM_SYNTHETIC_IMAGES": True,
    }


@contextmanager
def all_of_one_length() -> Iterator[None]:
    """Sources that draw images have as many as the others; whoever opened them keeps to that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(generated.ShapesSource.default_lengths, "TRAIN", COUNT)
        patch.setitem(generated.SyntheticSource.default_lengths, "TRAIN", COUNT)
        yield
