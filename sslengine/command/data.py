"""Find out what a path that a user gives is: by which source its images are read.

A file's ending decides. Of a folder, a dataset that `save_to_disk` wrote is known by a file of it.
Otherwise the number of files of each kind decides: it is what most of the files are, images,
shards, parquet files with images in them, or videos; then MNIST's files, then .npy files with an
image in each. So a clip among photos is left out, and so is the logo of a hub's repository among
its parquet files. Of a folder of splits, `train` beside `val`, one is read: read as one folder,
its splits would be its classes.
"""

from __future__ import annotations

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
from sslengine.command.columns import OF_SPLIT
from sslengine.config.components import keys_of
from sslengine.data.decode.files import how_far
from sslengine.data.manifest.classes import number_names
from sslengine.data.manifest.folder_scan import count_kinds, is_hidden
from sslengine.data.manifest.index import indexed
from sslengine.data.manifest.paths import SPLIT_NAMES, SPLITS
from sslengine.data.manifest.tables import IMAGE_NAMES, open_table
from sslengine.data.options import split_options
from sslengine.data.sources.base import DataSource, build_sources
from sslengine.data.sources.disk import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from sslengine.data.sources.tar_shards import expand_pattern
from sslengine.errors import ConfigError, DataError, MissingDataError, listing, readable
from sslengine.registry import DATA_SOURCES

log = logging.getLogger("sslengine")

BY_ENDING = {
    ".csv": "csv_filelist", ".tsv": "csv_filelist", ".txt": "csv_filelist", ".npy": "array_file",
    ".npz": "array_file", ".tar": "webdataset", ".gz": "array_file",
    **dict.fromkeys(VIDEO_SUFFIXES, "video"),
}  # fmt: skip
IMAGES, ARRAYS = "disk_folder", ".npy"
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
STORED = "stored"
# What reads the same files from one end to the other.
STREAMS = {"webdataset": "webdataset_stream", "huggingface_dataset": "huggingface_stream"}
_OF_THE_HUB = re.compile(r"hf://datasets/([^/@{}]+(/[^/@{}]+)?)/?")
_USER_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_YEAR = re.compile(r"[-_]?\d+$")  # train2017

# The value of a key of DATA.TRAIN that the user has set, or None.
Said = Callable[[str], Any]


def nothing(key: str) -> Any:
    return None


class FoundImages(NamedTuple):
    place: str  # a path, a pattern of shards, or their addresses
    source: DataSource
    name: str  # of the source
    own: Mapping[str, Any]  # what the user has set of its keys
    label_file: str = ""  # .npy, for a source without labels
    only_stored: bool = False  # no other IMAGE_MODE reads its files

    @property
    def path(self) -> Path:
        return Path(self.place)

    @property
    def is_stream(self) -> bool:
        return self.source.is_stream

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

    def stored(self) -> FoundImages:
        """The same images with the values of their files."""
        return self._replace(source=_source(self.name, self.place, self.own, IMAGE_MODE=STORED))

    def keys(self, split: str = "TRAIN", labels: bool = False) -> dict[str, Any]:
        """Keys of the config, without those of another source that were there."""
        unlabelled = "zero" if self.is_stream else "sample_index"
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
        known = keys_of(DATA_SOURCES, [self.name]).intersection(OF_SPLIT)
        columns = {key: self.own.get(key, getattr(default, key)) for key in sorted(known)}
        made = {f"DATA.{split}.{key}": value for key, value in columns.items()}
        return {**self.keys(split, labels), **made}


def look(
    given: str, said: Said = nothing, label_file: str = "", streams: bool = False,
    split: str = "TRAIN", as_stream: bool = False, all_splits: bool = False,
) -> FoundImages:  # fmt: skip
    """Raises if there is no image. said: of keys by which a source is read.

    streams: may it be one? as_stream: read what could be read at random as one.
    all_splits: of a folder of images with `train` and `val` in it, not the one of `split` alone.
    """
    given = given if "://" in given else str(Path(given))  # without ./ and //
    place, name = _found(given, said, "" if all_splits else split)
    name = _streamed(given, Path(place), name) if as_stream else name
    arrays = name == ARRAYS
    name = IMAGES if arrays else name
    own = {key: said(key) for key in keys_of(DATA_SOURCES, [name]) if said(key) is not None}
    if name in STREAMS.values():
        _expect_length(given, own.get("LENGTH") or 0, streams)
    mode = STORED if arrays else said("IMAGE_MODE")
    source = _source(name, place, own, split, **({"IMAGE_MODE": mode} if mode else {}))
    if not len(source):
        raise DataError(f"{given}: it holds no image.")
    return FoundImages(place, source, name, own, label_file, arrays)


def _expect_length(given: str, length: int, streams: bool) -> None:
    if not streams:
        raise ConfigError(
            f"{given}: shards on a server, and datasets of the hub, are a stream, which can only "
            f"be trained on. Expected a folder or file of this machine."
        )
    if length < 1:
        raise ConfigError(
            f"{given}: it is read as a stream, which does not say how many images it holds. Give "
            f"the number of images of an epoch, 1 or more: --length N, in Python length=N; got "
            f"{length or 'none'}."
        )


def _source(
    name: str, place: str, own: Mapping[str, Any], split: str = "TRAIN", **more: Any
) -> DataSource:
    options = split_options(DATA_SOURCES=[name], DATA_PATHS=[place], **own, **more)
    return build_sources(options, split)[0]


def _found(given: str, said: Said, split: str) -> tuple[str, str]:
    """The place as a config has it, and the source that reads it. split: "" for all."""
    if "://" in given:
        of_the_hub = _OF_THE_HUB.fullmatch(given)
        if of_the_hub:
            return of_the_hub[1], STREAMS["huggingface_dataset"]
        return given, STREAMS["webdataset"]
    path = there(given)
    if path.exists():
        stored = said("IMAGE_MODE") == STORED
        name = source_of(path, said("IMAGE_COLUMN") or "", stored)
        if split and path.is_dir() and name in (IMAGES, ARRAYS, "video"):
            path = folder_of_split(path, split)
        return str(path), name
    return str(path), "webdataset"  # a pattern


def _streamed(given: str, path: Path, name: str) -> str:
    if name in STREAMS.values():
        return name
    if name not in STREAMS:
        raise ConfigError(
            f"{given}: --stream (in Python stream=True) is for .tar shards and parquet files with "
            f"images in them; this is read at random, by {name}. Leave it out."
        )
    if is_saved_to_disk(path):
        raise ConfigError(
            f"{given}: save_to_disk wrote it, so its rows are read where they lie, without a copy. "
            f"Leave --stream (in Python stream=True) out."
        )
    return STREAMS[name]


def there(given: str) -> Path:
    """The whole path, or pattern of shards. Raises if it, or one of the shards, is not there."""
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
    """The name of the source, by the endings of files; ARRAYS for a folder of .npy images."""
    if path.is_dir():
        return source_of_folder(path, is_stored)
    ending = path.suffix.lower()
    if ending == ".parquet":
        holds_paths = _holds_paths(path, [image_column.lower()] if image_column else IMAGE_NAMES)
        return "csv_filelist" if holds_paths else "huggingface_dataset"
    if ending == ".npy" and _is_list(path):
        return "disk_filelist"
    if ending not in BY_ENDING:
        raise ConfigError(
            f"{path}: expected a folder of images, or a file that ends in "
            f"{listing([*BY_ENDING, '.parquet'])}."
        )
    return BY_ENDING[ending]


def _holds_paths(path: Path, names_of_images: Sequence[str]) -> bool:
    names, rows = open_table(path)
    found = [number for number, name in enumerate(names) if name.lower() in names_of_images]
    first = next(iter(rows(found[:1])), ("",)) if found else (b"",)
    return isinstance(first[0], str)


def _is_list(path: Path) -> bool:
    """Does the array hold paths, and no images?"""
    with suppress(Exception):  # the source says what is wrong
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "SU"
    return False


# ---- folders


def is_saved_to_disk(path: Path) -> bool:
    """Has `save_to_disk` of the package `datasets` written the folder?"""
    return any((path / file).exists() for file in OF_SAVE_TO_DISK)


def source_of_folder(path: Path, is_stored: bool = False) -> str:
    """Or ARRAYS, for .npy files. is_stored: these are images among others."""
    if is_saved_to_disk(path):
        return "huggingface_dataset"
    counts = _counts(path)
    found = {name: counts[name] for name in NAMES}
    found[IMAGES] += counts[ARRAYS] if is_stored else 0
    most = max(found, key=lambda name: found[name])
    if found[most]:
        _tell(path, most, found)
        return most
    if any(path.glob("*-images-idx3-ubyte*")):
        return "array_file"
    if counts[ARRAYS] and _holds_an_image(path):
        return ARRAYS
    raise DataError(_nothing(path, counts["compressed"]))


def holds_images(path: Path) -> bool:
    """Or shards, tables, videos; right in the folder or below it."""
    return any(_counts(path).values())


def _counts(path: Path) -> dict[str, int]:
    kinds = list(KINDS.values())
    found = indexed(
        f"kinds, {kinds}: {path.resolve()}",
        f"looking through {path}",
        lambda: count_kinds(path, kinds),
        cached=True,
    )
    return dict(zip(KINDS, found["counts"].array.tolist(), strict=True))


def _tell(path: Path, kind: str, found: Mapping[str, int]) -> None:
    parts = {name: f"{NAMES[name]} ({count})" for name, count in found.items() if count}
    read = parts.pop(kind)
    if parts:
        left = ", ".join(parts.values())
        log.warning("%s: %s are read; left out: %s", readable(path), read, left)


def _holds_an_image(path: Path) -> bool:
    """Say whether the first of its .npy files does; others hold lists, labels or features."""
    first = min(each for each in path.rglob("*") if each.suffix.lower() == ARRAYS)
    with suppress(Exception):  # of which kind depends on the file
        array = np.load(first, mmap_mode="r", allow_pickle=False)
        return isinstance(array, np.ndarray) and array.ndim in (2, 3) and array.dtype.kind in "buif"
    return False


def _nothing(path: Path, compressed: int) -> str:
    why = f"It has {compressed} compressed shards; {UNPACK}. " if compressed else ""
    return (
        f"{path}: no image in it or in the folders below it. {why}Looked for files that end in "
        f"{', '.join(IMAGE_SUFFIXES)}, for shards (.tar), parquet files with images in them, "
        f"videos ({', '.join(VIDEO_SUFFIXES)}), all of them also in capitals, for MNIST's files, "
        f"and for .npy files of one image each."
    )


def folder_of_split(path: Path, split: str) -> Path:
    """The folder of the split in `path`; `path` itself if its folders are not splits alone."""
    folders = sorted(each for each in path.iterdir() if each.is_dir() and not is_hidden(each.name))
    splits = {each: _name(each) for each in folders if _name(each) in SPLIT_NAMES}
    if not {*splits.values()} & {*SPLITS["TRAIN"]}:
        return path
    if any(map(holds_images, (each for each in folders if each not in splits))):
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
            "their files.",
            readable(path),
            there,
            found[0].name,
        )
    return found[0]


def _name(folder: Path) -> str:
    return _YEAR.sub("", folder.name.lower())
