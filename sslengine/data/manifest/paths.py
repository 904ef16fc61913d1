"""Where a split's files are: DATA_PATHS as given, else DATASET_NAMES looked up in a catalogue.

A catalogue is a JSON file as VISSL has it, `{name: {split: [data, labels]}}`, with the
splits train and val (or test). It is $SSLENGINE_DATASET_CATALOG, else
$VISSL_DATASET_CATALOG_PATH, else dataset_catalog.json in a folder of configs or in its `config`
folder, where VISSL has it: --config-dir, then configs in the current folder.

With COPY_TO_LOCAL_DISK data on a slow network drive is once copied to a fast disk of each node,
whose processes take turns. The copy appears under its final name only when it is complete, and
stays there for the next run, which uses it without a comparison: after a change of the original,
delete the copy.

In a folder with several splits, as the hub ships it, paths say what files are of:

    train-00000-of-00002.parquet, data/train-000.tar, train/000.tar      splits
    plain_text/train-00000-of-00001.parquet                              a configuration

A folder with splits in it that names none itself is a configuration: another set of the images.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sslengine.config.options import FOUND_CATALOGUE
from sslengine.data.manifest.index import turn
from sslengine.data.options import SplitOptions
from sslengine.errors import DataError, listing, nearest
from sslengine.trust import is_config_trusted

log = logging.getLogger("sslengine")

CATALOGUE_VARIABLES = ("SSLENGINE_DATASET_CATALOG", "VISSL_DATASET_CATALOG_PATH", FOUND_CATALOGUE)
DEFAULT_CATALOGUE = Path("configs/dataset_catalog.json")
CATALOGUE_SPLITS = {"TRAIN": ("train",), "TEST": ("val", "test")}
# What a split is called in names of folders and files, and of the arrays of one file: the first
# that is there.
SPLITS = {
    "TRAIN": ("train", "training"),
    "TEST": ("val", "validation", "valid", "dev", "test", "testing", "t10k"),
}
SPLIT_NAMES = frozenset(name for names in SPLITS.values() for name in names)


class Located(NamedTuple):
    """A path, and where it was given: a key of the config or an entry of the catalogue."""

    path: Path
    where: str


def data_path(options: SplitOptions, split: str, position: int) -> Located:
    """Return the folder or file of the source at `position`, or its copy on this node."""
    located = _locate(options, split, position, "DATA_PATHS", column=0)
    # A config that is not trusted does not say where files are written.
    if not options.COPY_TO_LOCAL_DISK or not is_config_trusted():
        return located
    folder = Path(options.COPY_DESTINATION_DIR).expanduser()
    return located._replace(path=copy_to_disk(located.path, folder, located.where))


def data_folder(options: SplitOptions, split: str, position: int) -> str:
    """Return where the file of the source lies, if it is a list; not where its copy lies."""
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
    where, name = f"config.DATA.{split}.DATASET_NAMES.{position}", options.DATASET_NAMES[position]
    chosen = next(filter(None, map(os.environ.get, CATALOGUE_VARIABLES)), DEFAULT_CATALOGUE)
    catalogue = Path(chosen)
    if not catalogue.is_file():
        raise DataError(
            f"{where}: {name!r} is to be looked up in the catalogue {catalogue}, which does not "
            f"exist. Give the place itself with {key}, or set {CATALOGUE_VARIABLES[0]}."
        )
    try:
        entries = json.loads(catalogue.read_text())
    except ValueError as error:
        raise DataError(f"{where}: the catalogue {catalogue} is not JSON: {error}") from error
    for each in CATALOGUE_SPLITS[split]:
        columns = entries.get(name, {}).get(each, ())
        if column < len(columns):
            return Located(Path(columns[column]), f"{catalogue}, {name}.{each}")
    raise DataError(
        f"{where}: the catalogue {catalogue} has no {'label file' if column else 'data'} of "
        f"{' or '.join(CATALOGUE_SPLITS[split])} for {name!r}. {nearest(name, entries)}\n"
        f"  It has: {listing(entries)}"
    )


def copy_to_disk(original: Path, folder: Path, where: str) -> Path:
    """Return the copy of a file or folder in `folder`; made if missing. where: its key."""
    if not original.exists():
        return original  # the data source reports what is missing
    whole = original.resolve()
    # Two datasets may have the same name: `train`.
    copy = folder / hashlib.sha256(os.fsencode(whole)).hexdigest()[:8] / whole.name
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with turn(copy.parent / f".{copy.name}.lock", f"copying {original}"):
            if not copy.exists():
                _copy(original, copy)
    except OSError as error:
        raise DataError(
            f"{where}: could not copy {original} to {folder}: {error}. Name another folder with "
            f"COPY_DESTINATION_DIR, or set COPY_TO_LOCAL_DISK to false."
        ) from error
    return copy


def _copy(original: Path, copy: Path) -> None:
    log.info("copying %s to %s", original, copy)
    unfinished = copy.with_name(f".{copy.name}.unfinished")
    if original.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
        shutil.copytree(original, unfinished)
    else:
        shutil.copy2(original, unfinished)
    os.replace(unfinished, copy)


def choose_split(files: Sequence[Path], root: Path, split: str, where: str) -> list[Path]:
    """Return those whose path names the split; all, if none names any; none, if all name others."""
    words = {each: split_words(str(each.relative_to(root))) for each in files}
    below = [each.relative_to(root).parts for each in files]
    configurations = {
        first for first, *rest in below
        if rest and not split_words(first) & SPLIT_NAMES
        and split_words("/".join(rest)) & SPLIT_NAMES
    }  # fmt: skip
    if len(configurations) > 1:
        raise DataError(
            f"{where}: {root} has several configurations: {listing(configurations)}. Give the "
            f"folder of one of them, such as {root / min(configurations)}."
        )
    if not any(found & SPLIT_NAMES for found in words.values()):
        return list(files)
    chosen = ([each for each in files if name in words[each]] for name in SPLITS[split])
    return next(filter(None, chosen), [])


def split_words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]", name.lower()))
