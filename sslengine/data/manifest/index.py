"""The table of a source's images: paths, labels, offsets; found once, kept, shared by processes.

A table is a few arrays, and the stamps (time of change, size) of the files and folders that they
were made from. It is used as long as no stamp has changed, and made again otherwise. It is kept in
$SSLENGINE_CACHE, else in ~/.cache/sslengine, never in the folder of the data. The processes of a
machine take turns: the first one looks, the others find the table.

Its arrays go to every loader worker. As plain ones each would get a copy, and ten million samples
would take gigabytes. A SharedArray goes as a reference to an open file: a nameless one in memory,
which the kernel frees with the last process that uses it, or one on a disk. Whoever sends it keeps
it until it has arrived, as a dataset does that has loader workers.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sslengine.atomic import lock_file, whole_file, write_whole

log = logging.getLogger("sslengine")

# Another number whenever other arrays are kept: what an earlier form has is found again.
FORM = 6
# A smaller array is pickled: an open file costs more.
BY_VALUE = 2**12
# What holds fewer entries is found again as quickly as its table is read.
WORTH_KEEPING = 10_000
# A table may be in use by another machine until it has not been opened for so long.
FORGOTTEN_AFTER = 30 * 24 * 3600.0
# A folder that changed within this time may change again without another time of change.
SETTLED_AFTER = 2 * 10**9  # nanoseconds
# As JSON has it: 0012 is none.
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
# Nothing is said of what is done within so many seconds, and then as often.
TOLD_EVERY = 10.0


class _OpenFile:
    """A file that is open as long as this lives."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor, self.name = descriptor, name
        weakref.finalize(self, os.close, descriptor)


class SharedArray:
    """A read-only array; `array` is it as numpy knows it."""

    def __init__(
        self, values: NDArray[Any], file: _OpenFile | None = None, offset: int = 0
    ) -> None:
        self.array = values
        self._file, self._offset = file, offset  # held open, so that others can open it as well

    @classmethod
    def share(cls, values: NDArray[Any]) -> SharedArray:
        """Copy the values to where they can be shared; few are kept unchanged."""
        if values.nbytes < BY_VALUE or not hasattr(os, "memfd_create"):
            return cls(values)
        file = _OpenFile(os.memfd_create("sslengine"), "a file in memory")
        with open(file.descriptor, "wb", closefd=False) as stream:
            np.ascontiguousarray(values).tofile(stream)
        return cls._map(file, values.dtype, values.shape)

    @classmethod
    def map_file(
        cls, path: str | Path, dtype: DTypeLike, shape: Sequence[int], offset: int = 0
    ) -> SharedArray:
        """Map the values that a file holds after so many bytes."""
        file = _OpenFile(os.open(path, os.O_RDONLY), str(path))
        return cls._map(file, dtype, shape, offset)

    @classmethod
    def _map(
        cls, file: _OpenFile, dtype: DTypeLike, shape: Sequence[int], offset: int = 0
    ) -> SharedArray:
        if 0 in shape:  # nothing can be mapped
            return cls(np.zeros(tuple(shape), dtype))
        with open(file.descriptor, "rb", closefd=False) as stream:
            mapped = np.memmap(stream, dtype, "r", offset, tuple(shape))
        return cls(np.asarray(mapped), file, offset)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> Any:
        return self.array[index]

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is None:
            return SharedArray, (self.array,)
        # Also a file that has no name, or has lost it, can be opened by way of who holds it.
        held = f"/proc/{os.getpid()}/fd/{self._file.descriptor}"
        place = held if os.path.exists(held) else self._file.name
        return SharedArray.map_file, (place, self.array.dtype.str, self.array.shape, self._offset)


class SharedStrings(Sequence[bytes]):
    """Many short strings, one after the other, and where each begins.

    Ten million paths of 62 bytes take 630 MiB, once on a machine.
    """

    def __init__(self, text: SharedArray, starts: SharedArray) -> None:
        self._text, self._starts = text, starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"{index} of {len(self)}")
        index %= len(self)
        begin, end = self._starts.array[index : index + 2]
        return self._text.array[begin:end].tobytes()


class SharedText(SharedStrings):
    """The same, decoded."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index).decode()


class ReadLater(Sequence[Any]):
    """Values that are read one at a time."""

    def __init__(self, read: Callable[[int], Any], count: int) -> None:
        self._read, self._count = read, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not index < self._count:
            raise IndexError(index)
        return self._read(index)


def share_values(values: Sequence[Any]) -> Any:
    """Share a column of text, or of numbers or rows of them; text of numbers becomes numbers."""
    if not isinstance(values, list):
        return values
    if all(isinstance(each, str) for each in values):
        if not all(map(_NUMBER.fullmatch, values)):
            text = make_string_arrays("", map(str.encode, values))
            return SharedText(*map(SharedArray.share, text.values()))
        values = list(map(json.loads, values))
    numbers = make_numbers(values)
    return SharedArray.share(numbers) if isinstance(numbers, np.ndarray) else values


def make_numbers(value: Any) -> Any:
    """Return an array of a number or a list of numbers, floats as float32; all else unchanged."""
    if isinstance(value, (list, int, float)):
        with suppress(ValueError):
            array = np.asarray(value)
            if array.dtype.kind in "biuf":
                return array.astype(np.float32) if array.dtype == np.float64 else array
    return value


def make_string_arrays(name: str, strings: Iterable[bytes]) -> dict[str, NDArray[Any]]:
    """Return the two arrays of a table that hold the strings, which are taken one at a time."""
    text, lengths = bytearray(), array("i")
    for each in strings:
        text += each
        lengths.append(len(each))
    starts = np.zeros(len(lengths) + 1, np.uint32 if len(text) < 2**32 else np.int64)
    np.cumsum(np.frombuffer(lengths, np.int32), out=starts[1:])
    return {name: np.frombuffer(text, np.uint8), f"{name}_starts": starts}


class Stamp(NamedTuple):
    """Time of change and size, by which a file or folder is seen to have changed."""

    path: bytes
    changed: int
    size: int


class FoundImages(NamedTuple):
    """What looking through files gave, to be kept or not."""

    arrays: Mapping[str, NDArray[Any]]
    stamps: Sequence[Stamp]
    entries: int


class ImageTable:
    """Arrays by name, which all processes share."""

    def __init__(self, arrays: Mapping[str, SharedArray]) -> None:
        self._arrays = arrays

    @classmethod
    def share(cls, found: FoundImages) -> ImageTable:
        return cls({name: SharedArray.share(values) for name, values in found.arrays.items()})

    def __getitem__(self, name: str) -> SharedArray:
        return self._arrays[name]

    def strings(self, name: str) -> SharedStrings:
        return SharedStrings(self._arrays[name], self._arrays[f"{name}_starts"])

    def is_current(self) -> bool:
        """Tell whether all files and folders still are as they were."""
        marks = self["marks"].array.tolist()
        with suppress(OSError):
            return all(
                list(stamp(os.fsdecode(path))[1:]) == mark
                for path, mark in zip(self.strings("stamped"), marks, strict=True)
            )
        return False


def stamp(path: str | Path) -> Stamp:
    """Take the stamp of a file or folder, before it is looked into."""
    status = os.stat(path)
    size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return Stamp(os.fsencode(path), status.st_mtime_ns, size)


def cache_folder() -> Path:
    given = os.environ.get("SSLENGINE_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "sslengine"


def indexed(key: str, doing: str, find: Callable[[], FoundImages], cached: bool) -> ImageTable:
    """Return the table that `find` makes, or made before.

    key: what is looked for, where and how.
    doing: the same in words, for the log.
    cached: whether it may be kept.
    """
    try:
        return _load_or_find(key, doing, find) if cached else ImageTable.share(find())
    finally:
        # glibc keeps what was freed for later: 150 MB, where ten million files were looked through.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _load_or_find(key: str, doing: str, find: Callable[[], FoundImages]) -> ImageTable:
    name = hashlib.sha256(os.fsencode(f"{FORM} {key}")).hexdigest()[:24]
    place = cache_folder() / "index" / name
    if index := _load(place):
        return index
    with ExitStack() as held:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(turn(place.with_suffix(".lock"), doing))
        except OSError as error:
            log.warning("%s, each time again: no index can be kept (%s)", doing, error)
            return ImageTable.share(find())
        return _load(place) or _find_and_keep(place, doing, find)


def _find_and_keep(place: Path, doing: str, find: Callable[[], FoundImages]) -> ImageTable:
    began = time.time_ns()
    found = find()
    settled = all(each.changed < began - SETTLED_AFTER for each in found.stamps)
    if found.entries < WORTH_KEEPING or not settled:
        return ImageTable.share(found)
    try:
        _keep(place, found)
    except OSError as error:
        log.warning("%s, each time again: the index cannot be kept (%s)", doing, error)
    return _load(place) or ImageTable.share(found)


def _keep(place: Path, found: FoundImages) -> None:
    """Write all arrays first, then the file that names them; remove what is no longer used."""
    arrays = {
        **found.arrays,
        **make_string_arrays("stamped", (each.path for each in found.stamps)),
        "marks": np.array([each[1:] for each in found.stamps], np.int64).reshape(-1, 2),
    }
    kept = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent))
    for name, values in arrays.items():
        with whole_file(kept / name) as file:
            np.ascontiguousarray(values).tofile(file)
    forms = {name: [values.dtype.str, list(values.shape)] for name, values in arrays.items()}
    told = json.dumps({"folder": kept.name, "arrays": forms})
    write_whole(place.with_suffix(".json"), told.encode())
    for folder in place.parent.glob(f"{place.name}-*"):
        if folder != kept and time.time() - folder.stat().st_mtime > FORGOTTEN_AFTER:
            shutil.rmtree(folder, ignore_errors=True)


def _load(place: Path) -> ImageTable | None:
    """Return the table, if there is one and nothing has changed since."""
    try:
        told = json.loads(place.with_suffix(".json").read_text())
        folder = place.parent / told["folder"]
        index = ImageTable({
            name: SharedArray.map_file(folder / name, dtype, shape)
            for name, (dtype, shape) in told["arrays"].items()
        })  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):  # none, or not whole
        return None
    if not index.is_current():
        return None
    with suppress(OSError):  # the cache may be for reading alone
        os.utime(folder)
    return index


@contextmanager
def turn(lock: Path, waits_for: str) -> Iterator[None]:
    """Let one process at a time in. The lock of a process that dies is free again.

    waits_for: what the log says another process is doing, if it has to be waited for.
    """
    with lock.open("w") as file:
        if not lock_file(file.fileno()):
            log.info("waiting for another process that is %s", waits_for)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class ProgressLog:
    """Say in the log and on the screen how far it is, of what takes long."""

    def __init__(self, doing: str, total: int = 0) -> None:
        self._doing, self._of = doing, f" of {total:,}" if total else ""
        self._next = time.monotonic() + TOLD_EVERY

    def tell(self, done: int, things: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + TOLD_EVERY
            text = f"{self._doing}: {done:,}{self._of} {things} so far"
            log.info("%s", text, extra={"on_screen": True})
