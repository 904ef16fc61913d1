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
from typing import Any

import numpy as np

from sslengine.command.arguments import Argument, build_parser, expect_new
from sslengine.data.options import SplitOptions
from sslengine.errors import ConfigError, DataError, MissingDataError, OutputError, readable

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
    from sslengine.data.sources.disk import FolderSource

    root, out, name = given.folder, given.out, given.name or given.folder.resolve().name
    if not root.is_dir():
        raise MissingDataError(f"the image folder {root} is not there.")
    found = {split: root / split for split in SPLITS if (root / split).is_dir()}
    folders = found if "train" in found else {"train": root}
    arrays: dict[str, list[Any]] = {}
    told, classes = [], list[str]()
    for split, folder in folders.items():
        source = FolderSource(SplitOptions(DATA_PATHS=[str(folder.resolve())]), "TRAIN")
        arrays[f"{split}_images.npy"] = [source.path(row) for row in range(len(source))]
        labels = [source.label(row) for row in range(len(source))]
        classes = [*source.class_names] if split == "train" else classes  # it is the first
        kinds = "no labels"
        if min(labels) >= 0:  # every image is in a class folder
            arrays[f"{split}_labels.npy"], kinds = labels, f"{len(set(labels))} classes"
            if odd := sorted(set(source.class_names) ^ set(classes)):
                raise DataError(f"{root}: {split} and train differ in their classes: {odd[:8]}")
        told.append(f"{split}: {len(source)} images, {kinds}")
    for file in (out / each for each in (*arrays, "classes.txt", "dataset_catalog.json")):
        if file.exists():
            raise OutputError(f"{file} exists; it is not overwritten. Name another folder.")
    out.mkdir(parents=True, exist_ok=True)
    for file, values in arrays.items():
        np.save(out / file, values)
    entries = {split: [str(out.resolve() / each) for each in arrays if each.startswith(split)]
               for split in folders}  # fmt: skip
    (out / "classes.txt").write_bytes(b"".join(os.fsencode(each) + b"\n" for each in classes))
    (out / "dataset_catalog.json").write_text(json.dumps({name: entries}, indent=2) + "\n")
    return [
        *told,
        f"in {out}; to use them:",
        f"  export SSLENGINE_DATASET_CATALOG={out.resolve() / 'dataset_catalog.json'}",
        "  config.DATA.TRAIN.DATA_SOURCES=[disk_filelist] "
        f"config.DATA.TRAIN.DATASET_NAMES=[{name}]",
    ]


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
