"""What was found by looking through many files, kept for the next start.

An index is a few arrays (paths, labels, offsets) and the stamps of the files and folders that
they were made from: time of change and size. It is used as long as no stamp has changed,
and made again otherwise. It is kept in $SSLENGINE_CACHE, else in ~/.cache/sslengine, never in
the folder of the data. The processes of a machine take turns: the first one looks, the others find
the index, and all of them read the same pages of memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sslengine.atomic import whole_file, write_whole
from sslengine.data.manifest.shared import SharedArray, SharedStrings, joined
from sslengine.data.manifest.shared_paths import SharedPaths
from sslengine.data.manifest.turns import turn

log = logging.getLogger("sslengine")

# Another number whenever other arrays are kept: what an earlier form has is found again.
FORM = 5
# What holds fewer entries is found again as quickly as its index is read.
WORTH_KEEPING = 10_000
# An index may be in use by another machine until it has not been opened for so long.
FORGOTTEN_AFTER = 30 * 24 * 3600.0
# A folder that changed within this time may change again without another time of change.
SETTLED_AFTER = 2 * 10**9  # nanoseconds


class Stamp(NamedTuple):
    path: bytes
    changed: int
    size: int


class Found(NamedTuple):
    """What looking through files gave, to be kept or not."""

    arrays: Mapping[str, NDArray[Any]]
    stamps: Sequence[Stamp]
    entries: int


class Index:
    """Arrays by name, which all processes share."""

    def __init__(self, arrays: Mapping[str, SharedArray]) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> SharedArray:
        return self._arrays[name]

    def strings(self, name: str) -> SharedStrings:
        return SharedStrings(self._arrays[name], self._arrays[f"{name}_starts"])

    def paths(self) -> SharedPaths:
        names, begins, ends = (self.strings(name) for name in ("names", "begins", "ends"))
        return SharedPaths(names, begins, ends, self["kind_of"])


def string_arrays(name: str, strings: Iterable[bytes]) -> dict[str, NDArray[Any]]:
    """Strings as two arrays of an index."""
    text, starts = joined([strings])
    return {name: text, f"{name}_starts": starts}


def stamp(path: str | Path) -> Stamp:
    """Taken before the file or folder is looked into."""
    status = os.stat(path)
    size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return Stamp(os.fsencode(path), status.st_mtime_ns, size)


def cache_folder() -> Path:
    given = os.environ.get("SSLENGINE_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "sslengine"


def indexed(key: str, doing: str, find: Callable[[], Found], cached: bool) -> Index:
    """The index that `find` makes, or made before.

    key: what is looked for, where and how.
    doing: the same in words, for the log.
    cached: whether it may be kept.
    """
    try:
        return _indexed(key, doing, find, cached)
    finally:
        _give_memory_back()


def _give_memory_back() -> None:
    """glibc keeps what was freed for later: 150 MB, where ten million files were looked through."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _indexed(key: str, doing: str, find: Callable[[], Found], cached: bool) -> Index:
    if not cached:
        return _in_memory(find())
    name = hashlib.sha256(os.fsencode(f"{FORM} {key}")).hexdigest()[:24]
    place = cache_folder() / "index" / name
    index = _load(place)
    if index is not None:
        return index
    with ExitStack() as held:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(turn(place.with_suffix(".lock"), doing))
        except OSError as error:
            log.warning("%s, each time again: no index can be kept (%s)", doing, error)
            return _in_memory(find())
        return _load(place) or _find_and_keep(place, doing, find)


def _find_and_keep(place: Path, doing: str, find: Callable[[], Found]) -> Index:
    began = time.time_ns()
    found = find()
    settled = all(each.changed < began - SETTLED_AFTER for each in found.stamps)
    if found.entries < WORTH_KEEPING or not settled:
        return _in_memory(found)
    try:
        _keep(place, found)
    except OSError as error:
        log.warning("%s, each time again: the index cannot be kept (%s)", doing, error)
        return _in_memory(found)
    return _load(place) or _in_memory(found)


def _in_memory(found: Found) -> Index:
    return Index({name: SharedArray.of(values) for name, values in found.arrays.items()})


def _keep(place: Path, found: Found) -> None:
    """All arrays first, then the file that names them."""
    marks = np.array([each[1:] for each in found.stamps], np.int64).reshape(-1, 2)
    stamped = string_arrays("stamped", (each.path for each in found.stamps))
    arrays = {**found.arrays, **stamped, "marks": marks}
    folder = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent))
    for name, values in arrays.items():
        with whole_file(folder / name) as file:
            np.ascontiguousarray(values).tofile(file)
    forms = {name: [values.dtype.str, list(values.shape)] for name, values in arrays.items()}
    told = json.dumps({"folder": folder.name, "arrays": forms})
    write_whole(place.with_suffix(".json"), told.encode())
    _forget(place, folder)


def _forget(place: Path, kept: Path) -> None:
    """Remove earlier indexes, and what a process that was killed left."""
    for folder in place.parent.glob(f"{place.name}-*"):
        if folder != kept and time.time() - folder.stat().st_mtime > FORGOTTEN_AFTER:
            shutil.rmtree(folder, ignore_errors=True)


def _load(place: Path) -> Index | None:
    """The index, if there is one and nothing has changed since."""
    try:
        told = json.loads(place.with_suffix(".json").read_text())
        folder = place.parent / told["folder"]
        arrays = {
            name: SharedArray.on_disk(folder / name, dtype, shape)
            for name, (dtype, shape) in told["arrays"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):  # none, or not whole
        return None
    index = Index(arrays)
    if not _unchanged(index):
        return None
    with suppress(OSError):  # the cache may be for reading alone
        os.utime(folder)
    return index


def _unchanged(index: Index) -> bool:
    marks = index["marks"].array.tolist()
    for path, mark in zip(index.strings("stamped"), marks, strict=True):
        try:
            if list(stamp(os.fsdecode(path))[1:]) != mark:
                return False
        except OSError:
            return False
    return True
