"""Make file lists of a folder of images, for the source `disk_filelist`.

    sslengine make file-lists /data/imagenet lists --name imagenet

    /data/imagenet/train/<class>/*.jpg    ->   lists/train_images.npy, lists/train_labels.npy
    /data/imagenet/val/<class>/*.jpg      ->   lists/val_images.npy,   lists/val_labels.npy

A folder without train/ is one split, train. Without class folders there are no labels. Labels are
numbers in the order of the class names, which are in lists/classes.txt. With the catalogue
lists/dataset_catalog.json configs can name the data: DATASET_NAMES=[imagenet].
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sslengine import catalog  # noqa: F401 - declares all names
from sslengine.data.options import SplitOptions
from sslengine.data.sources.disk import FolderSource
from sslengine.errors import DataError, MissingDataError, OutputError

SPLITS = ("train", "val", "test")


def splits_of(root: Path) -> dict[str, Path]:
    found = {split: root / split for split in SPLITS if (root / split).is_dir()}
    return found if "train" in found else {"train": root}


def read_split(folder: Path) -> tuple[list[str], list[int] | None, Sequence[str]]:
    """Absolute paths; labels, if each image is in a class folder; the names of the classes."""
    source = FolderSource(SplitOptions(DATA_PATHS=[str(folder.resolve())]), "TRAIN")
    paths = [source.path(index) for index in range(len(source))]
    labels = [source.label(index) for index in range(len(source))]
    return paths, None if min(labels) < 0 else labels, source.class_names


def write(root: Path, out: Path, name: str) -> list[str]:
    """Write the lists; returns what was written, line by line."""
    if not root.is_dir():
        raise MissingDataError(f"the image folder {root} is not there.")
    parts = {split: read_split(folder) for split, folder in splits_of(root).items()}
    classes = parts["train"][2]
    for split, (_, labels, names) in parts.items():
        if labels is not None and names != classes:
            odd = sorted(set(names) ^ set(classes))
            raise DataError(f"{root}: {split} and train differ in their classes: {odd[:8]}")
    files = {f"{split}_images.npy": np.array(paths) for split, (paths, _, _) in parts.items()}
    files |= {
        f"{split}_labels.npy": np.array(labels)
        for split, (_, labels, _) in parts.items()
        if labels is not None
    }
    entries = {
        split: [str(out.resolve() / f"{split}_{kind}.npy") for kind in ("images", "labels")
                if f"{split}_{kind}.npy" in files]
        for split in parts
    }  # fmt: skip
    _refuse_to_overwrite([out / each for each in (*files, "classes.txt", "dataset_catalog.json")])
    out.mkdir(parents=True, exist_ok=True)
    for file, values in files.items():
        np.save(out / file, values)
    (out / "classes.txt").write_bytes(b"".join(os.fsencode(each) + b"\n" for each in classes))
    (out / "dataset_catalog.json").write_text(json.dumps({name: entries}, indent=2) + "\n")
    told = [
        f"{split}: {len(paths)} images, "
        + ("no labels" if labels is None else f"{len(set(labels))} classes")
        for split, (paths, labels, _) in parts.items()
    ]
    return [
        *told,
        f"in {out}; to use them:",
        f"  export SSLENGINE_DATASET_CATALOG={out.resolve() / 'dataset_catalog.json'}",
        "  config.DATA.TRAIN.DATA_SOURCES=[disk_filelist] "
        f"config.DATA.TRAIN.DATASET_NAMES=[{name}]",
    ]


def _refuse_to_overwrite(files: Sequence[Path]) -> None:
    for file in files:
        if file.exists():
            raise OutputError(f"{file} exists; it is not overwritten. Name another folder.")
