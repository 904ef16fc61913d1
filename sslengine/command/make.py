"""Make files that runs read.

    sslengine make file-lists /data/imagenet lists --name imagenet
    sslengine make permutations --count 2000 permutations_2000.npy
    sslengine make whole-checkpoint runs/mine/checkpoints/checkpoint.torch --out whole.torch

`sslengine make KIND --help` says more of each.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sslengine.command.counts import expect_counts
from sslengine.command.new_file import expect_new
from sslengine.errors import ConfigError, readable
from sslengine.registry import import_dotted

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
    parser = argparse.ArgumentParser(
        prog="sslengine make", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, (text, add_arguments, _) in KINDS.items():
        add_arguments(kinds.add_parser(
            name, description=text, help=text.partition("\n")[0], allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        ))  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = make_parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(readable("\n".join(KINDS[given.kind][2](given)), but="\n"))
    return 0


def _file_lists(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, help="the images, with or without folders for splits and classes")
    add("out", type=Path, help="the folder to write into")
    add("--name", help="name in the catalogue (default: that of the folder)")


def _write_lists(given: argparse.Namespace) -> list[str]:
    name = given.name or given.folder.resolve().name
    told: list[str] = import_dotted("sslengine.command.file_lists:write")(
        given.folder, given.out, name
    )
    return told


def _permutations(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, help="the .npy file to write")
    add("--count", type=int, default=2000,
        help="number of permutations, which are the classes (2000)")  # fmt: skip
    add("--patches", type=int, default=9, help="patches of an image (9)")
    add("--seed", type=int, default=0, help="seed of the permutations (0)")


def _draw_permutations(given: argparse.Namespace) -> list[str]:
    import numpy as np

    of = "sslengine.data.augment.jigsaw"
    if given.file.suffix != ".npy":
        raise ConfigError(f"expected a name that ends in .npy, got {given.file}")
    expect_new(given.file)
    expect_counts(given, count=1, patches=1)
    try:
        drawn = import_dotted(f"{of}:distinct_permutations")(given.count, given.patches, given.seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    given.file.parent.mkdir(parents=True, exist_ok=True)
    np.save(given.file, drawn)
    average, least = import_dotted(f"{of}:distances")(drawn)
    return [
        f"{given.file}: {given.count} permutations of {given.patches} patches. Two differ "
        f"in {average:.2f} places on average, in {least} at least."
    ]


def _whole_checkpoint(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", type=Path, help="a folder *.shards, or a link to one")
    add("--out", type=Path, required=True, metavar="FILE")
    add("--weights-only", action="store_true", help="omit the optimizer's state")


def _join(given: argparse.Namespace) -> list[str]:
    import_dotted("sslengine.checkpoint.sharded:join")(given.source, given.out, given.weights_only)
    return [f"{given.out}: written"]


# What each is, its arguments, and what makes it.
KINDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[Any], list[str]]]]
KINDS = {
    "file-lists": (FILE_LISTS, _file_lists, _write_lists),
    "permutations": (PERMUTATIONS, _permutations, _draw_permutations),
    "whole-checkpoint": (WHOLE_CHECKPOINT, _whole_checkpoint, _join),
}
