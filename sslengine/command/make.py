"""Make files that runs read.

    sslengine make file-lists /data/imagenet lists --name imagenet
    sslengine make permutations --count 2000 permutations_2000.npy
    sslengine make whole-checkpoint runs/mine/checkpoints/checkpoint.torch --out whole.torch

`sslengine make KIND --help` says more of each.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sslengine import catalog
from sslengine.command.arguments import Argument, build_parser, expect_new
from sslengine.data.options import SplitOptions
from sslengine.errors import ConfigError, DataError, MissingDataError, OutputError, readable

assert catalog  # importing it declares all names

SPLITS = ("train", "val", "test")

FILE_LISTS = """Lists of a folder of images, for the source disk_filelist.

    /data/imagenet/train/<class>/*.jpg    ->   lists/train_images.npy, lists/train_labels.npy
    /data/imagenet/val/<class>/*.jpg      ->   lists/val_images.npy,   lists/val_labels.npy

A folder without train/ is one split, train. Without class folders there are no labels. Labels are
numbers in the order of the class names, which are in lists/classes.txt. With the catalogue
lists/dataset_catalog.json configs can name the data: DATASET_NAMES=[imagenet].
"""
PERMUTATIONS = """A file of permutations for the jigsaw task (ShuffleImgPatches: perm_file).

The same arguments make the same file on every machine.
"""
WHOLE_CHECKPOINT = """A sharded checkpoint as one file, as an unsharded run saves it.

A run can resume from it. The whole checkpoint must fit into host memory, but not into GPU memory.
"""


def make_parser() -> argparse.ArgumentParser:
    parser = build_parser("make", __doc__, ())
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, (text, arguments, _) in KINDS.items():
        inner = kinds.add_parser(
            name, description=text, help=text.partition("\n")[0], allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        for each in arguments:
            each.add_to(inner)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = make_parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(readable("\n".join(KINDS[given.kind][2](given)), but="\n"))
    return 0


def _write_lists(given: argparse.Namespace) -> list[str]:
    """Write the lists; return what was written, line by line."""
    root, out, name = given.folder, given.out, given.name or given.folder.resolve().name
    if not root.is_dir():
        raise MissingDataError(f"the image folder {root} is not there.")
    parts = {split: _read_split(folder) for split, folder in _find_splits(root).items()}
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
    for file in (out / each for each in (*files, "classes.txt", "dataset_catalog.json")):
        if file.exists():
            raise OutputError(f"{file} exists; it is not overwritten. Name another folder.")
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


def _find_splits(root: Path) -> dict[str, Path]:
    found = {split: root / split for split in SPLITS if (root / split).is_dir()}
    return found if "train" in found else {"train": root}


def _read_split(folder: Path) -> tuple[list[str], list[int] | None, Sequence[str]]:
    """Return absolute paths; labels, if each image is in a class folder; the names of classes."""
    from sslengine.data.sources.disk import FolderSource

    source = FolderSource(SplitOptions(DATA_PATHS=[str(folder.resolve())]), "TRAIN")
    paths = [source.path(index) for index in range(len(source))]
    labels = [source.label(index) for index in range(len(source))]
    return paths, None if min(labels) < 0 else labels, source.class_names


def _draw_permutations(given: argparse.Namespace) -> list[str]:
    from sslengine.data.augment.jigsaw import distances, distinct_permutations

    if given.file.suffix != ".npy":
        raise ConfigError(f"expected a name that ends in .npy, got {given.file}")
    expect_new(given.file)
    try:
        drawn = distinct_permutations(given.count, given.patches, given.seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    given.file.parent.mkdir(parents=True, exist_ok=True)
    np.save(given.file, drawn)
    average, least = distances(drawn)
    return [
        f"{given.file}: {given.count} permutations of {given.patches} patches. Two differ "
        f"in {average:.2f} places on average, in {least} at least."
    ]


def _join_shards(given: argparse.Namespace) -> list[str]:
    from sslengine.checkpoint.sharded import join

    join(given.source, given.out, given.weights_only)
    return [f"{given.out}: written"]


# What each is, its arguments, and what makes it.
KINDS: dict[str, tuple[str, Sequence[Argument], Callable[[argparse.Namespace], list[str]]]] = {
    "file-lists": (FILE_LISTS, (
        Argument("folder", "the images, with or without folders for splits and classes", Path),
        Argument("out", "the folder to write into", Path),
        Argument("--name", "name in the catalogue (default: that of the folder)"),
    ), _write_lists),
    "permutations": (PERMUTATIONS, (
        Argument("file", "the .npy file to write", Path),
        Argument("--count", "number of permutations, which are the classes (2000)", int,
                 default=2000, least=1),
        Argument("--patches", "patches of an image (9)", int, default=9, least=1),
        Argument("--seed", "seed of the permutations (0)", int, default=0),
    ), _draw_permutations),
    "whole-checkpoint": (WHOLE_CHECKPOINT, (
        Argument("source", "a folder *.shards, or a link to one", Path),
        Argument("--out", kind=Path, metavar="FILE", required=True),
        Argument("--weights-only", "omit the optimizer's state", bool),
    ), _join_shards),
}  # fmt: skip
ARGUMENTS = (
    Argument("kind", choices=tuple(KINDS)),
    *(each for _, arguments, _ in KINDS.values() for each in arguments if each.flag[0] == "-"),
)
