"""Where a split's files are: DATA_PATHS as given, else DATASET_NAMES looked up in a catalogue.

A catalogue is a JSON file as VISSL has it, `{name: {split: [data, labels]}}`, with the
splits train and val (or test). It is $SSLENGINE_DATASET_CATALOG, else
$VISSL_DATASET_CATALOG_PATH, else dataset_catalog.json in a folder of configs or in its `config`
folder, where VISSL has it: --config-dir, then configs in the current folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from sslengine.config.options import FOUND_CATALOGUE
from sslengine.data.manifest.local_copy import local_copy
from sslengine.data.options import SplitOptions
from sslengine.errors import DataError, MissingDataError, listing, nearest
from sslengine.trust import is_config_trusted

CATALOGUE_VARIABLES = ("SSLENGINE_DATASET_CATALOG", "VISSL_DATASET_CATALOG_PATH", FOUND_CATALOGUE)
DEFAULT_CATALOGUE = Path("configs/dataset_catalog.json")
SPLIT_NAMES = {"TRAIN": ("train",), "TEST": ("val", "test")}


class Located(NamedTuple):
    """A path, and where it was given: a key of the config or an entry of the catalogue."""

    path: Path
    where: str


def data_path(options: SplitOptions, split: str, position: int) -> Located:
    """The folder or file of the source at `position`: the original, or its copy on this node."""
    located = _locate(options, split, position, "DATA_PATHS", column=0)
    # A config that is not trusted does not say where files are written.
    if not options.COPY_TO_LOCAL_DISK or not is_config_trusted():
        return located
    folder = Path(options.COPY_DESTINATION_DIR).expanduser()
    return located._replace(path=local_copy(located.path, folder, located.where))


def how_far(path: Path) -> str:
    """Of a path that is not there: down to which folder it is, and what is there instead."""
    whole = path.absolute()
    folder = next(each for each in whole.parents if each.is_dir())
    missing = whole.relative_to(folder).parts[0]
    try:
        names = [each.name for each in islice(os.scandir(folder), 10_000)]
    except OSError:  # it may not be listed
        names = []
    return f"{folder} has no {missing!r}. {nearest(missing, names)}".rstrip()


def data_error(path: Path) -> type[DataError]:
    """The kind of an error about this path: what is not there was mistyped."""
    return DataError if path.exists() else MissingDataError


def data_folder(options: SplitOptions, split: str, position: int) -> str:
    """Where the file of the source lies, if it is a list; not where its copy lies."""
    return str(_locate(options, split, position, "DATA_PATHS", column=0).path.parent)


def label_path(options: SplitOptions, split: str, position: int) -> Located:
    """Return the label file of the source at `position`."""
    return _locate(options, split, position, "LABEL_PATHS", column=1)


def _locate(options: SplitOptions, split: str, position: int, key: str, column: int) -> Located:
    given = getattr(options, key)
    where = f"config.DATA.{split}.{key}.{position}"
    if position < len(given) and given[position]:
        return Located(Path(given[position]).expanduser(), where)
    if position >= len(options.DATASET_NAMES):
        raise DataError(
            f"{where}: nothing says where the data is. Give its place with "
            f"config.DATA.{split}.{key}=[/path/to/it], or its name in DATASET_NAMES."
        )
    name = options.DATASET_NAMES[position]
    catalogue, entries = _read_catalogue(f"config.DATA.{split}.DATASET_NAMES.{position}", name, key)
    return _entry(entries, catalogue, name, split, column)


def _read_catalogue(where: str, name: str, key: str) -> tuple[Path, Mapping[str, Any]]:
    chosen = next((os.environ[each] for each in CATALOGUE_VARIABLES if os.environ.get(each)), None)
    catalogue = Path(chosen) if chosen else DEFAULT_CATALOGUE
    if not catalogue.is_file():
        raise DataError(
            f"{where}: {name!r} is to be looked up in a catalogue, and {catalogue} does not "
            f"exist. Give the place itself with {key}=[/path/to/it], or set "
            f"{CATALOGUE_VARIABLES[0]} to your catalogue."
        )
    try:
        entries = json.loads(catalogue.read_text())
    except ValueError as error:
        raise DataError(f"The data catalogue {catalogue} is not valid JSON: {error}") from error
    if name not in entries:
        raise DataError(
            f"{where}: the catalogue {catalogue} has no {name!r}. {nearest(name, entries)}\n"
            f"  It has: {listing(entries)}"
        )
    return catalogue, entries


def _entry(
    entries: Mapping[str, Any], catalogue: Path, name: str, split: str, column: int
) -> Located:
    for each in SPLIT_NAMES[split]:
        columns = entries[name].get(each, ())
        if column < len(columns):
            return Located(Path(columns[column]), f"{catalogue}, {name}.{each}")
    raise DataError(
        f"The data catalogue {catalogue} has no {' or '.join(SPLIT_NAMES[split])} entry with "
        f"{'a label file' if column else 'a data path'} for {name!r}."
    )
