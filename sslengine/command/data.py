"""Find out what a path that a user gives is: by which source its images are read.

A file's ending decides. Of a folder, a dataset that `save_to_disk` wrote is known by a file of it.
Otherwise the number of files of each kind decides: it is what most of the files are, images,
shards, parquet files with images in them, or videos; then MNIST's files, then .npy files with an
image in each. So a clip among photos is left out, and so is the logo of a hub's repository among
its parquet files. Of a folder of splits, `train` beside `val`, one is read: read as one folder,
its splits would be its classes. In tables, --image-column and --label-column name what is read.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from glob import has_magic
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sslengine import catalog  # noqa: F401 - declares the names of sources
from sslengine.config.components import keys_of
from sslengine.config.compose import compose_on, typed
from sslengine.config.files import Layer
from sslengine.config.yaml_text import read_plain
from sslengine.data.decode.files import how_far
from sslengine.data.manifest.classes import number_names
from sslengine.data.manifest.folder_scan import count_kinds, is_hidden
from sslengine.data.manifest.index import indexed
from sslengine.data.manifest.paths import SPLIT_NAMES, SPLITS
from sslengine.data.manifest.tables import IMAGE_NAMES, open_table
from sslengine.data.options import split_options
from sslengine.data.sources.base import DataSource, build_sources
from sslengine.data.sources.disk import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from sslengine.errors import ConfigError, DataError, MissingDataError, listing, readable
from sslengine.registry import DATA_SOURCES

log = logging.getLogger("sslengine")

BY_ENDING = {
    ".csv": "csv_filelist", ".tsv": "csv_filelist", ".txt": "csv_filelist", ".npy": "array_file",
    ".npz": "array_file", ".tar": "webdataset", ".gz": "array_file",
    **dict.fromkeys(VIDEO_SUFFIXES, "video"),
}  # fmt: skip
IMAGES, ARRAYS, STORED = "disk_folder", ".npy", "stored"
OF_SAVE_TO_DISK = ("state.json", "dataset_dict.json")
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
KINDS: Mapping[str, tuple[str, ...]] = {
    IMAGES: IMAGE_SUFFIXES,
    "webdataset": (".tar",),
    "huggingface_dataset": (".parquet",),
    "video": VIDEO_SUFFIXES,
    ARRAYS: (".npy",),
    "compressed": COMPRESSED,
}
# Of as many files the first: one picture beside one parquet file is a hub's, not a set.
NAMES = {
    "webdataset": ".tar files",
    "huggingface_dataset": ".parquet files",
    "video": "videos",
    IMAGES: "images",
}
UNPACK = "images of a shard are read where they lie in it, which compression prevents: unpack it"
# What reads the same files from one end to the other.
STREAMS = {"webdataset": "webdataset_stream", "huggingface_dataset": "huggingface_stream"}
_OF_THE_HUB = re.compile(r"hf://datasets/([^/@{}]+(/[^/@{}]+)?)/?")
_USER_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_YEAR = re.compile(r"[-_]?\d+$")  # train2017
GROUP = "DATA.HOLD_OUT.GROUP_COLUMN"
# Keys of a split: columns, and all by which images are found and read.
COLUMNS = ("IMAGE_COLUMN", "LABEL_COLUMN", "LABEL_COLUMNS", "LABEL_SEPARATOR")
READ_BY = (*COLUMNS, "IMAGE_MODE", "PIXEL_RANGE", "IMAGE_PAGE")
# Keys by which a run may select some of its images, with the values that select all.
ALL_OF_IT = {
    "DATA.TRAIN.DATA_LIMIT": -1, "DATA.TRAIN.DATASET_NAMES": [], "DATA.TRAIN.LABEL_PATHS": [],
    "DATA.TRAIN.DATA_LIMIT_SAMPLING.SHARE": 0.0, "DATA.TRAIN.DATA_LIMIT_SAMPLING.LIST": "",
    "DATA.HOLD_OUT.SHARE": 0.0, "DATA.HOLD_OUT.SEED": 0, "DATA.HOLD_OUT.STRATIFIED": False,
    GROUP: "",
}  # fmt: skip

# The value of a key of a split that the user has set, or None.
Said = Callable[[str], Any]


class ImagesAt(NamedTuple):
    """The images at a place, with the source that reads them."""

    place: str  # a path, a pattern of shards, or their addresses
    source: DataSource
    name: str  # of the source
    own: Mapping[str, Any]  # what the user has set of its keys
    label_file: str = ""  # .npy, for a source without labels
    only_stored: bool = False  # no other IMAGE_MODE reads its files

    @property
    def has_classes(self) -> bool:
        return bool(self.label_file) or self.source.num_classes > 1

    @property
    def class_names(self) -> Sequence[str]:
        """The names of classes by number; empty where labels are numbers in their own right."""
        if not self.label_file:
            return self.source.class_names
        labels = np.load(self.label_file, mmap_mode="r")
        if labels.dtype.kind != "U":
            return ()
        return number_names(labels.tolist(), self.label_file)[1]

    @property
    def has_one_class_each(self) -> bool:
        """Not several classes of an image, and none without a label."""
        if self.label_file:
            return bool(np.load(self.label_file, mmap_mode="r").ndim == 1)
        with suppress(DataError):
            return self.has_classes and self.source.labels().ndim == 1
        return False

    def open_stored(self) -> DataSource:
        """Open the same images with the values of their files."""
        return _open_source(self.name, self.place, {**self.own, "IMAGE_MODE": STORED})

    def keys(self, split: str = "TRAIN", labels: bool = False) -> dict[str, Any]:
        """Return keys of the config, without those of another source that were there."""
        unlabelled = "zero" if self.source.is_stream else "sample_index"
        made = {
            "DATA_SOURCES": [self.name],
            "DATA_PATHS": [self.place],
            "LABEL_SOURCES": [self.name] if self.has_classes else [],
            "LABEL_TYPE": "standard" if labels else unlabelled,
        }
        if self.only_stored:
            made["IMAGE_MODE"] = STORED
        if self.label_file:
            made |= {"LABEL_SOURCES": ["disk_filelist"], "LABEL_PATHS": [self.label_file]}
        return {f"DATA.{split}.{key}": value for key, value in made.items()}

    def keys_over(self, split: str = "TRAIN", labels: bool = False) -> dict[str, Any]:
        """Return keys over the config of a run, whose data may have other columns."""
        default = split_options(DATA_SOURCES=[self.name])
        known = keys_of(DATA_SOURCES, [self.name]).intersection(COLUMNS)
        columns = {key: self.own.get(key, getattr(default, key)) for key in sorted(known)}
        made = {f"DATA.{split}.{key}": value for key, value in columns.items()}
        return {**self.keys(split, labels), **made}


def look(
    given: str, said: Said = lambda key: None, label_file: str = "", streams: bool = False,
    split: str = "TRAIN", as_stream: bool = False, all_splits: bool = False,
) -> ImagesAt:  # fmt: skip
    """Find the images; raise a DataError if there is none. said: of keys by which they are read.

    streams: may it be one? as_stream: read what could be read at random as one.
    all_splits: of a folder of images with `train` and `val` in it, not the one of `split` alone.
    """
    given = given if "://" in given else str(Path(given))  # without ./ and //
    place, name = _find_source(given, said, "" if all_splits else split)
    if as_stream and name not in STREAMS.values():
        if name not in STREAMS or is_saved_to_disk(Path(place)):
            raise ConfigError(
                f"{given}: --stream (in Python stream=True) is for .tar shards and parquet files "
                f"with images in them; this is read at random, by {name}. Leave it out."
            )
        name = STREAMS[name]
    only_stored = name == ARRAYS
    name = IMAGES if only_stored else name
    own = {key: said(key) for key in keys_of(DATA_SOURCES, [name]) if said(key) is not None}
    if name in STREAMS.values():
        _expect_length(given, own.get("LENGTH") or 0, streams)
    mode = STORED if only_stored else said("IMAGE_MODE")
    source = _open_source(name, place, {**own, **({"IMAGE_MODE": mode} if mode else {})}, split)
    if not len(source):
        raise DataError(f"{given}: it holds no image.")
    return ImagesAt(place, source, name, own, label_file, only_stored)


def _expect_length(given: str, length: int, streams: bool) -> None:
    if not streams:
        raise ConfigError(
            f"{given}: shards on a server, and datasets of the hub, are a stream, which can only "
            f"be trained on. Expected a folder or file of this machine."
        )
    if length < 1:
        raise ConfigError(
            f"{given}: it is read as a stream, which does not say how many images it holds. Give "
            f"the number of images of an epoch: --length N, in Python length=N."
        )


def _open_source(name: str, place: str, own: Mapping[str, Any], split: str = "TRAIN") -> DataSource:
    options = split_options(**{"DATA_SOURCES": [name], "DATA_PATHS": [place], **own})
    return build_sources(options, split)[0]


def _find_source(given: str, said: Said, split: str) -> tuple[str, str]:
    """Return the place as a config has it, and the source that reads it. split: "" for all."""
    if "://" in given:
        of_the_hub = _OF_THE_HUB.fullmatch(given)
        if of_the_hub:
            return of_the_hub[1], STREAMS["huggingface_dataset"]
        return given, STREAMS["webdataset"]
    path = find_path(given)
    if not path.exists():
        return str(path), "webdataset"  # a pattern
    name = source_of(path, said("IMAGE_COLUMN") or "", said("IMAGE_MODE") == STORED)
    if split and path.is_dir() and name in (IMAGES, ARRAYS, "video"):
        path = folder_of_split(path, split)
    return str(path), name


def find_path(given: str) -> Path:
    """Return the whole path, or pattern of shards; raise if it, or a shard, is not there."""
    from sslengine.data.sources.tar import expand_pattern  # torch

    path = Path(given).expanduser().absolute()
    if path.name.lower().endswith(COMPRESSED):
        raise ConfigError(f"{path}: {UNPACK}. Expected .tar, a folder of such files or a pattern.")
    if path.exists():
        return path
    if "{" not in given or path.suffix.lower() != ".tar":
        hub = f" A dataset of the hub: hf://datasets/{given}" if _USER_NAME.fullmatch(given) else ""
        raise MissingDataError(f"{given}: there is no such folder or file: {how_far(path)}{hub}")
    for shard in expand_pattern(str(path), given):
        if not has_magic(shard) and not os.path.isfile(shard):
            raise MissingDataError(f"{given}: there is no shard {shard}: {how_far(Path(shard))}")
    return path


def source_of(path: Path, image_column: str = "", is_stored: bool = False) -> str:
    """Return the source, by the endings of files; ARRAYS for a folder of .npy images."""
    if path.is_dir():
        return source_of_folder(path, is_stored)
    ending = path.suffix.lower()
    if ending == ".parquet":
        names, rows = open_table(path)
        wanted = [image_column.lower()] if image_column else IMAGE_NAMES
        columns = [number for number, name in enumerate(names) if name.lower() in wanted]
        first = next(iter(rows(columns[:1])), ("",)) if columns else (b"",)
        return "csv_filelist" if isinstance(first[0], str) else "huggingface_dataset"
    array = _read_array(path) if ending == ".npy" else None
    if array is not None and array.ndim == 1 and array.dtype.kind in "SU":
        return "disk_filelist"
    if ending not in BY_ENDING:
        raise ConfigError(
            f"{path}: expected a folder of images, or a file that ends in "
            f"{listing([*BY_ENDING, '.parquet'])}."
        )
    return BY_ENDING[ending]


def _read_array(path: Path) -> Any:
    """Map a .npy file; return None if it holds no array: its source says what is wrong."""
    with suppress(Exception):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array if isinstance(array, np.ndarray) else None
    return None


# ---- folders


def is_saved_to_disk(path: Path) -> bool:
    """Say whether `save_to_disk` of the package `datasets` has written the folder."""
    return any((path / file).exists() for file in OF_SAVE_TO_DISK)


def source_of_folder(path: Path, is_stored: bool = False) -> str:
    """Return the source, or ARRAYS for .npy files. is_stored: these are images among others."""
    if is_saved_to_disk(path):
        return "huggingface_dataset"
    counts = _count_files(path)
    found = {name: counts[name] for name in NAMES}
    found[IMAGES] += counts[ARRAYS] if is_stored else 0
    most = max(found, key=lambda name: found[name])
    if found[most]:
        parts = {name: f"{NAMES[name]} ({count})" for name, count in found.items() if count}
        read = parts.pop(most)
        if left := ", ".join(parts.values()):
            log.warning("%s: %s are read; left out: %s", readable(path), read, left)
        return most
    if any(path.glob("*-images-idx3-ubyte*")):
        return "array_file"
    if counts[ARRAYS]:  # the first may hold an image; others hold lists, labels or features
        array = _read_array(min(each for each in path.rglob("*") if each.suffix.lower() == ARRAYS))
        if array is not None and array.ndim in (2, 3) and array.dtype.kind in "buif":
            return ARRAYS
    packed = counts["compressed"]
    why = f"It has {packed} compressed shards; {UNPACK}. " if packed else ""
    raise DataError(
        f"{path}: no image in it or in the folders below it. {why}Looked for files that end in "
        f"{', '.join((*IMAGE_SUFFIXES, *VIDEO_SUFFIXES))}, .tar, .parquet, for MNIST's files, and "
        f"for .npy files of one image each."
    )


def _count_files(path: Path) -> dict[str, int]:
    """Count the files of each kind, right in the folder or below it."""
    kinds = list(KINDS.values())
    found = indexed(
        f"kinds, {kinds}: {path.resolve()}",
        f"looking through {path}",
        lambda: count_kinds(path, kinds),
        cached=True,
    )
    return dict(zip(KINDS, found["counts"].array.tolist(), strict=True))


def folder_of_split(path: Path, split: str) -> Path:
    """Return the folder of the split; `path` itself if its folders are not splits alone."""
    folders = sorted(each for each in path.iterdir() if each.is_dir() and not is_hidden(each.name))
    names = {each: _YEAR.sub("", each.name.lower()) for each in folders}
    splits = {each: name for each, name in names.items() if name in SPLIT_NAMES}
    if not {*splits.values()} & {*SPLITS["TRAIN"]}:
        return path
    if any(any(_count_files(each).values()) for each in folders if each not in splits):
        return path  # the class "train" among others
    chosen = ([each for each, name in splits.items() if name == of] for of in SPLITS[split])
    found = next(filter(None, chosen), [])
    there = listing([each.name for each in splits])
    if len(found) != 1:
        raise DataError(
            f"{path}: it holds splits of a set: {there}. Expected one for {split} "
            f"({', '.join(SPLITS[split])}); there {f'are {len(found)}' if found else 'is none'}. "
            f"Give the path of one."
        )
    if len(splits) > 1:
        log.warning(
            "%s: its folders %s are splits of a set; %s is read. For all images give a list of "
            "their files.", readable(path), there, found[0].name,
        )  # fmt: skip
    return found[0]


# ---- columns: keys of a split


def split_keys(image: str | None, labels: Sequence[str] | str | None) -> dict[str, Any]:
    """Return the keys that --image-column and --label-column stand for."""
    labels = [labels] if isinstance(labels, str) else list(labels or ())
    found: dict[str, Any] = {"IMAGE_COLUMN": image} if image else {}
    if labels:
        key, value = ("LABEL_COLUMN", labels[0]) if len(labels) == 1 else ("LABEL_COLUMNS", labels)
        found[key] = value
    return found


def train_keys(given: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of a config that the options of `train` stand for."""
    asked = split_keys(given.image_column, given.label_column)
    found = {f"DATA.TRAIN.{key}": value for key, value in asked.items()}
    more = {GROUP: given.group, "DATA.TRAIN.LENGTH": given.length}
    return {**found, **{key: value for key, value in more.items() if value}}


def typed_keys(values: Sequence[str], split: str = "TRAIN") -> dict[str, Any]:
    """Return the keys of a split, of those in READ_BY, that --set says."""
    composed = compose_on(Layer("", {}), typed(values), "config")
    found = {key: composed.last_value(f"config.DATA.{split}.{key}") for key in READ_BY}
    return {key: value for key, value in found.items() if value is not None}


def run_keys(run: Path, data: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given`; for the images that a run was trained on also the keys that it has."""
    file = run / "config.yaml"
    if not file.is_file():
        return dict(given)
    config: Any = read_plain(file)[0].get("config") or {}
    place = [str(Path(data).expanduser().absolute())]
    splits = [(config.get("DATA") or {}).get(split) or {} for split in ("TRAIN", "TEST")]
    its_own = next((each for each in splits if each.get("DATA_PATHS") == place), {})
    return merge_keys(its_own, given)


def merge_keys(others: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given`, and of `others` what it does not say: labels are said as a whole."""
    labels = "LABEL_COLUMN" in given or "LABEL_COLUMNS" in given
    kept = COLUMNS[:1] if labels else COLUMNS
    return {**{key: others[key] for key in kept if others.get(key)}, **given}


def expect_effect(given: Mapping[str, Any], places: Mapping[str, str]) -> None:
    """Raise a ConfigError if no source knows a key that an option gave.

    places: what is read, and by which source.
    """
    known = {key for name in places.values() for key in keys_of(DATA_SOURCES, [name])}
    for key in (each for each in given if each not in known):
        option = "--image-column" if key == "IMAGE_COLUMN" else "--label-column"
        raise ConfigError(
            f"{option}: it has no effect on {listing(places)}, read by "
            f"{listing({*places.values()})}, which knows no {key}."
        )


def suggest_labels(place: str, said: Mapping[str, Any]) -> str:
    """Name what may hold the labels of a table or a file of arrays in which none were found."""
    path, names = Path(place), list[str]()
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        names = [*open_table(path)[0]]
    elif path.is_file() and path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as held:
            names = [*held]
    if len(names) < 2 or "LABEL_COLUMN" in said or "LABEL_COLUMNS" in said:
        return ""
    return (
        f"{place}: no labels are found in it. It has {listing(names)}. Name what holds the labels: "
        f"--label-column NAME."
    )


def look_for_run(
    run: Path, data: str, given: Mapping[str, Any], values: Sequence[str], **how: Any
) -> ImagesAt:
    """Find images that the network of a run is applied to, and warn if a table shows no labels.

    given: keys of options. values: of --set. how: of `look`.
    """
    said = run_keys(run, data, {**how.pop("keys", {}), **typed_keys(values), **given})
    found = look(data, said.get, **how)
    expect_effect(given, {found.place: found.name})
    if not found.source.num_classes and (note := suggest_labels(found.place, said)):
        log.warning("%s", note)
    return found
