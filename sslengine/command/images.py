"""What a path that a user gives is read by."""

from __future__ import annotations

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
from sslengine.command.folder_kind import (
    ARRAYS,
    COMPRESSED,
    IMAGES,
    UNPACK,
    is_saved_to_disk,
    source_of_folder,
)
from sslengine.command.split_folders import folder_of_split
from sslengine.config.components import keys_of
from sslengine.data.options import split_options
from sslengine.data.sources.base import DataSource, build_sources
from sslengine.data.sources.class_numbers import numbered_names
from sslengine.data.sources.disk import VIDEO_SUFFIXES
from sslengine.data.sources.paths import how_far
from sslengine.data.sources.tables import IMAGE_NAMES, open_table
from sslengine.data.sources.tar_shards import expanded
from sslengine.errors import ConfigError, DataError, MissingDataError, listing
from sslengine.registry import DATA_SOURCES

BY_ENDING = {
    ".csv": "csv_filelist", ".tsv": "csv_filelist", ".txt": "csv_filelist", ".npy": "array_file",
    ".npz": "array_file", ".tar": "webdataset", ".gz": "array_file",
    **dict.fromkeys(VIDEO_SUFFIXES, "video"),
}  # fmt: skip
STORED = "stored"
# What reads the same files from one end to the other.
STREAMS = {"webdataset": "webdataset_stream", "huggingface_dataset": "huggingface_stream"}
_OF_THE_HUB = re.compile(r"hf://datasets/([^/@{}]+(/[^/@{}]+)?)/?")
_USER_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")

# The value of a key of DATA.TRAIN that the user has set, or None.
Said = Callable[[str], Any]


def nothing(key: str) -> Any:
    return None


class Images(NamedTuple):
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
        """By number; empty where labels are numbers in their own right."""
        if not self.label_file:
            return self.source.class_names
        labels = np.load(self.label_file, mmap_mode="r")
        if labels.dtype.kind != "U":
            return ()
        return numbered_names(labels.tolist(), self.label_file)[1]

    @property
    def has_one_class_each(self) -> bool:
        """Not several classes of an image, and none without a label."""
        if self.label_file:
            return bool(np.load(self.label_file, mmap_mode="r").ndim == 1)
        with suppress(DataError):
            return self.has_classes and self.source.labels().ndim == 1
        return False

    def stored(self) -> Images:
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
        """On top of the config of a run, whose data may have other columns."""
        default = split_options(DATA_SOURCES=[self.name])
        known = keys_of(DATA_SOURCES, [self.name]).intersection(OF_SPLIT)
        columns = {key: self.own.get(key, getattr(default, key)) for key in sorted(known)}
        made = {f"DATA.{split}.{key}": value for key, value in columns.items()}
        return {**self.keys(split, labels), **made}


def look(
    given: str, said: Said = nothing, label_file: str = "", streams: bool = False,
    split: str = "TRAIN", as_stream: bool = False, all_splits: bool = False,
) -> Images:  # fmt: skip
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
    return Images(place, source, name, own, label_file, arrays)


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
    for shard in expanded(str(path), given):
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
