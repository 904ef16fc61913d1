"""Images in tar files: `webdataset`, read at random by where they lie in them, and
`webdataset_stream`, one shard after another, from a server too.

DATA_PATHS is a folder of .tar files or a pattern: /data/train-{000..146}.tar, /data/*.tar; of a
stream also addresses, https:// and others that fsspec knows (s3://, gs://). Members that follow
each other and share their name up to the first dot are one sample: 0001.jpg, 0001.cls. The image is
the one that ends in .jpg, .png or the like alone, or in IMAGE_COLUMN: left.png is that of
1.left.png. Labels come from .cls, or from the key LABEL_COLUMN ("label") of .json.

A tar file may hold anything. What is read of it is limited, and each mistake in it is a ShardError
that names the file and the member.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
import tarfile
import tempfile
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from shutil import copyfileobj
from typing import Any, BinaryIO, NamedTuple, NoReturn
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.classes import ClassNumbers, LabelError, count_classes
from sslengine.data.manifest.index import (
    FoundImages,
    ProgressLog,
    ReadLater,
    indexed,
    make_string_arrays,
    stamp,
)
from sslengine.data.manifest.paths import choose_split, data_path
from sslengine.data.options import ShardOptions, SplitOptions, StreamOptions, own
from sslengine.data.sources.base import EncodedSource
from sslengine.data.sources.disk import IMAGE_SUFFIXES
from sslengine.data.sources.stream import Streamed, StreamSource
from sslengine.errors import DataError, MissingDataError, SSLEngineError, listing, readable
from sslengine.registry import register_data_source

log = logging.getLogger("sslengine")

OPEN_SHARDS = 64  # in each process
LARGEST_IMAGE = 2**31 - 2**12  # bytes that one read of Linux gives
LARGEST_LABEL = 2**16  # of .cls
LARGEST_JSON = 2**24
LARGEST_HEADER = 2**20  # of what precedes a member, for example a long name
LONGEST_PATTERN = 4096  # as of a path
MOST_NAMES = 1_000_000  # of a pattern
_PLAIN = (str, int, float)  # a label
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?")
# Of a download.
TIMEOUT = 60.0  # seconds without any byte
AT_ONCE = 2**20  # bytes
# Answers of a server that another attempt does not change: 408 and 429 ask for one.
LASTING = {400, 401, 403, 404, 405, 410, 451}


class ShardError(DataError):
    """A tar file that cannot be read, or holds what it should not."""


# ---- the samples of one file


class Sample(NamedTuple):
    name: str  # of the member that holds the image
    offset: int
    size: int
    label: Any
    begin: int  # where the header of its first member is


class _Members(dict[str, tarfile.TarInfo]):
    """The members of a sample, by their endings in small letters. place: what to call the file."""

    def __init__(self, file: BinaryIO, place: str) -> None:
        self._file, self._place = file, place

    def first(self) -> tarfile.TarInfo:
        return next(iter(self.values()))

    def image(self, ending: str) -> tarfile.TarInfo | None:
        plain = (member for end, member in self.items() if f".{end}" in IMAGE_SUFFIXES)
        found = self.get(ending) if ending else next(plain, None)
        return found and self._check_size(found, LARGEST_IMAGE)

    def label(self, key: str) -> Any:
        """Return what .cls says, or the key of .json; None: neither is there."""
        if "cls" in self and not key:
            text = self._text("cls", LARGEST_LABEL)
            with suppress(ValueError, RecursionError):  # ["cat", "dog"], several classes
                told = json.loads(text)
                if isinstance(told, list) and all(isinstance(each, _PLAIN) for each in told):
                    return told
            return text
        label = self._json().get(key or "label") if "json" in self else None
        for each in label if isinstance(label, list) else [label]:
            if each is not None and not isinstance(each, _PLAIN):
                kind = type(each).__name__
                self._fail("json", f"{key or 'label'!r} is no text or number, but a {kind}")
        return label

    def field(self, name: str) -> Any:
        """Read the member with this ending, or the key of .json."""
        ending = name.lstrip(".").lower()
        if ending == "json" and "json" in self:
            return self._json()
        if ending not in self:
            told = self._json() if "json" in self else {}
            if name not in told:
                raise ShardError(
                    f"{self._place}: the sample of {readable(self.first().name)} has no {name!r}. "
                    f"It has the members {listing(self)}"
                    + (f" and in .json {listing(told)}." if told else ".")
                )
            return told[name]
        if ending.endswith("npy"):
            return np.load(BytesIO(self._read(ending, LARGEST_IMAGE)), allow_pickle=False)
        if f".{ending}".endswith(IMAGE_SUFFIXES):
            return self._read(ending, LARGEST_IMAGE)
        text = self._text(ending, LARGEST_JSON)
        return int(text) if ending == "cls" and text.strip().isdecimal() else text

    def _json(self) -> dict[str, Any]:
        try:
            told = json.loads(self._text("json", LARGEST_JSON))
        except (ValueError, RecursionError) as error:
            self._fail("json", f"no JSON object: {error}")
        if not isinstance(told, dict):
            self._fail("json", f"no JSON object, but a {type(told).__name__}")
        return told

    def _text(self, ending: str, most: int) -> str:
        try:
            return self._read(ending, most).decode()
        except UnicodeDecodeError as error:
            self._fail(ending, f"not UTF-8: {error}")

    def _read(self, ending: str, most: int) -> bytes:
        member = self._check_size(self[ending], most)
        return os.pread(self._file.fileno(), member.size, member.offset_data)

    def _check_size(self, member: tarfile.TarInfo, most: int) -> tarfile.TarInfo:
        name = f"{self._place}: {readable(member.name)}"
        if member.size > most:
            raise ShardError(f"{name} has {member.size:,} bytes; {most:,} are the most.")
        if member.offset_data + member.size > os.fstat(self._file.fileno()).st_size:
            raise ShardError(f"{name}: not a whole tar file: unexpected end of data")
        return member

    def _fail(self, ending: str, why: str) -> NoReturn:
        raise ShardError(f"{self._place}: {readable(self[ending].name)}: {why}")


class TarReader:
    """Read shard after shard.

    ending: of the members that hold images (IMAGE_COLUMN); "": .jpg, .png or the like alone.
    label_key: where in .json the label is, instead of in .cls; None: labels are not read.
    """

    def __init__(self, ending: str, label_key: str | None, where: str) -> None:
        self._ending = ending.lstrip(".").lower()
        self._label_key, self._where = label_key, where
        self.without_image = 0

    def read(self, file: BinaryIO, shard: str) -> Iterator[Sample]:
        """Yield the samples of an open file. shard: what to call it."""
        place = f"{self._where}: {readable(shard)}"
        try:
            with _open(file) as tar:
                for members in _group(tar, file, place):
                    image = members.image(self._ending)
                    if image is None:
                        self._leave_out(members, place)
                        continue
                    label = None if self._label_key is None else members.label(self._label_key)
                    begin = members.first().offset
                    yield Sample(image.name, image.offset_data, image.size, label, begin)
                # tarfile takes anything that is no header for the end.
                block = os.pread(file.fileno(), tarfile.BLOCKSIZE, tar.offset)
                if block.strip(b"\0") or len(block) not in (0, tarfile.BLOCKSIZE):
                    raise tarfile.ReadError(f"unexpected end of data: no header at {tar.offset:,}")
        except (SSLEngineError, MemoryError, OSError):
            raise
        except Exception as error:  # of a tar file that is none, tarfile raises anything
            raise ShardError(
                f"{place} is not a whole tar file: {error or type(error).__name__}. Unpack one "
                f"that is compressed (gunzip)."
            ) from error

    def _leave_out(self, members: _Members, place: str) -> None:
        """Warn of the first one: a stream does not know how many there are."""
        self.without_image += 1
        if self.without_image == 1:
            log.warning(
                "%s: the sample of %s has no image (%s). Samples without one are left out.",
                place, readable(members.first().name),
                readable(f".{self._ending}" if self._ending else ".jpg, .png or the like"),
            )  # fmt: skip


def read_fields(file: BinaryIO, begin: int, names: Sequence[str], place: str) -> dict[str, Any]:
    """Read members of the sample that begins there, by their endings, or keys of its .json."""
    with _open(file, begin) as tar:
        members = next(_group(tar, file, place))
        return {name: members.field(name) for name in names}


class _Limited:
    """A file of which tarfile reads a little at a time: a header may claim any size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return self._file.read(size)


def _open(file: BinaryIO, begin: int = 0) -> tarfile.TarFile:
    file.seek(begin)
    limited: Any = _Limited(file)
    return tarfile.open(fileobj=limited, mode="r:")


def _group(tar: Any, file: BinaryIO, place: str) -> Iterator[_Members]:
    """Yield the members of each sample."""
    current, members = "", _Members(file, place)
    for member in tar:
        tar.members = []  # it would keep all of them
        folder, _, name = member.name.rpartition("/")
        stem, _, ending = name.partition(".")
        if not member.isreg() or not stem:
            continue
        if f"{folder}/{stem}" != current and members:
            yield members
            members = _Members(file, place)
        current, ending = f"{folder}/{stem}", ending.lower()
        if ending in members:
            raise ShardError(f"{place}: {readable(member.name)} is there twice in one sample.")
        members[ending] = member
    if members:
        yield members


# ---- at random


@register_data_source("webdataset")
class TarSource(EncodedSource):
    """The samples of all shards, shard by shard: one look through them finds where each lies."""

    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._columns, self._split = own(options, ShardOptions), split
        pattern, self.where = data_path(options, split, position)
        if options.COPY_TO_LOCAL_DISK and not pattern.exists():
            raise DataError(
                f"{self.where}: COPY_TO_LOCAL_DISK copies a folder of shards, not a pattern."
            )
        self._shards = find_shards(str(pattern), self.where, split)
        ending, key = self._columns.IMAGE_COLUMN, self._columns.LABEL_COLUMN
        index = indexed(
            f"samples of shards, {ending!r}, {key!r}, {self._columns.LABEL_SEPARATOR!r}: "
            f"{'|'.join(self._shards)}",
            f"looking through the shards {pattern}",
            self._find,
            cached=self._columns.CACHE_INDEX,
        )
        self._names, self._shard, self._labels = (
            index.strings("paths"), index["shard"], index["labels"],
        )  # fmt: skip
        self._offset, self._size, self._begin = index["offset"], index["size"], index["begin"]
        if not len(self):
            raise DataError(
                f"{self.where}: no image in {len(self._shards)} shards, the first is "
                f"{self._shards[0]}. Looked for members that end in "
                f"{ending or ', '.join(IMAGE_SUFFIXES)} (IMAGE_COLUMN)."
            )
        self.class_names = [os.fsdecode(name) for name in index.strings("classes")]
        self.num_classes = count_classes(self._labels.array)
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> bytes:
        shard, size = int(self._shard.array[index]), int(self._size.array[index])
        content = os.pread(self._file(shard).fileno(), size, int(self._offset.array[index]))
        if len(content) < size:
            raise EOFError(f"the shard ends within it: {len(content)} of {size} bytes")
        return content

    def labels(self) -> NDArray[np.generic]:
        key = self._columns.LABEL_COLUMN or "label"
        return self.expect_labels(
            self._labels.array,
            f"have none in .cls or under {key!r} in .json. Name the key in "
            f"config.DATA.{self._split}.LABEL_COLUMN, leave such samples out",
        )

    def column(self, name: str, where: str) -> Sequence[Any]:
        try:
            self._field(name, 0)
        except ShardError as error:
            raise DataError(f"{where}: {error}") from error
        return ReadLater(partial(self._field, name), len(self))

    def _field(self, name: str, index: int) -> Any:
        shard, begin = int(self._shard.array[index]), int(self._begin.array[index])
        return read_fields(self._file(shard), begin, [name], self._shards[shard])[name]

    def path(self, index: int) -> str:
        shard = self._shards[int(self._shard.array[index])]
        return f"{os.fsdecode(self._names[index])} in {shard}"

    def files_of(self, rows: NDArray[np.int64]) -> list[str]:
        return [self._shards[shard] for shard in np.unique(self._shard.array[rows])]

    def _file(self, shard: int) -> BinaryIO:
        file = self._open.pop(shard, None) or open(self._shards[shard], "rb", buffering=0)  # noqa: SIM115
        self._open[shard] = file  # the last one that was used
        if len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)[1].close()
        return file

    def __del__(self) -> None:
        for file in getattr(self, "_open", {}).values():
            file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def _find(self) -> FoundImages:
        progress = ProgressLog("looking through shards", total=len(self._shards))
        reader = TarReader(self._columns.IMAGE_COLUMN, self._columns.LABEL_COLUMN, self.where)
        classes = ClassNumbers(self._columns.LABEL_SEPARATOR)
        numbers = {name: array("q") for name in ("offset", "size", "begin", "shard")}
        stamps = [stamp(shard) for shard in self._shards]

        def read_names() -> Iterator[bytes]:
            for number, shard in enumerate(self._shards):
                with open(shard, "rb") as file:
                    for name, offset, size, label, begin in reader.read(file, shard):
                        for column, value in zip(numbers.values(), (offset, size, begin, number)):
                            column.append(value)
                        try:
                            classes.add(label)
                        except LabelError as error:
                            place = f"{self.where}: {readable(shard)}: {readable(name)}"
                            raise DataError(f"{place}: {error}") from error
                        yield os.fsencode(name)
                progress.tell(number + 1, "shards")

        try:
            names = make_string_arrays("paths", read_names())
        except OSError as error:
            raise DataError(f"{self.where}: a shard cannot be read: {error}") from error
        found = {name: np.frombuffer(column, np.int64) for name, column in numbers.items()}
        if reader.without_image:
            log.info("%s: %d samples have no image", self.where, reader.without_image)
        arrays = {**names, **classes.arrays(), **found, "shard": found["shard"].astype(np.int32)}
        return FoundImages(arrays, stamps, len(found["shard"]))


# ---- as a stream


@register_data_source("webdataset_stream")
class TarStream(StreamSource):
    """The samples of shards that are read from their beginnings to their ends.

    Each worker copies one shard at a time from a server into a nameless temporary file.
    """

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        pattern = options.DATA_PATHS[position] if options.DATA_PATHS else ""
        if "://" in pattern:
            self._shards = expand_pattern(pattern, self.where)
        else:
            self._shards = find_shards(os.path.expanduser(pattern), self.where, split)
        if any("://" in each for each in self._shards):  # braces may make addresses
            self.expect_trust(pattern)
        self.parts = len(self._shards)
        label_key = self._label_column if self.reads_labels else None
        self._tars = TarReader(own(options, StreamOptions).IMAGE_COLUMN, label_key, self.where)
        if self.reads_labels:
            self.know_classes()

    def files_of(self, rows: NDArray[np.int64]) -> list[str]:
        return [each for each in self._shards if "://" not in each]

    def part(self, number: int) -> Iterator[Streamed]:
        shard = self._shards[number]
        with tempfile.TemporaryFile() if "://" in shard else open(shard, "rb") as file:
            if shard.startswith(("http://", "https://")):
                _download(shard, file)
            elif "://" in shard:
                _copy_by_fsspec(shard, file, self.where)
            for sample in self._tars.read(file, shard):
                content = os.pread(file.fileno(), sample.size, sample.offset)
                fields = read_fields(file, sample.begin, self.fields, shard)
                yield Streamed(f"{sample.name} in {shard}", content, sample.label, fields)


def _download(url: str, file: BinaryIO) -> None:
    try:
        with urlopen(Request(url, headers={"User-Agent": "sslengine"}), timeout=TIMEOUT) as answer:
            copyfileobj(answer, file, AT_ONCE)
            expected = answer.headers.get("Content-Length")
    except HTTPError as error:
        with error:
            if error.code in LASTING:
                raise DataError(f"{readable(url)}: the server answers {error.code}.") from error
            raise
    if expected is not None and file.tell() != int(expected):
        raise OSError(f"{url}: {file.tell():,} of {expected} bytes came")


def _copy_by_fsspec(url: str, file: BinaryIO, where: str) -> None:
    try:
        fsspec: Any = import_module("fsspec")
        with fsspec.open(url, "rb") as stored:
            copyfileobj(stored, file, AT_ONCE)
    except (ImportError, ValueError) as error:  # of a kind that it does not know
        raise DataError(f"{where}: {readable(url)}: {error}") from error


# ---- which shards


def find_shards(pattern: str, where: str, split: str = "TRAIN") -> list[str]:
    """Find the tar files that a folder holds or that a pattern means, in order."""
    path = Path(pattern)
    if path.is_dir():
        # Right in it, else one folder below; of the split, where their paths name that.
        levels = (
            sorted(each for each in path.glob(level) if each.suffix.lower() == ".tar")
            for level in ("[!.]*", "[!.]*/[!.]*")
        )
        inside = next(filter(None, levels), [])
        found = list(map(str, choose_split(inside, path, split, where) or inside))
    elif path.is_file():  # by any name
        found = [pattern]
    else:
        found = [
            shard
            for each in expand_pattern(pattern, where)
            for shard in (sorted(glob.glob(each)) if glob.has_magic(each) else [each])
        ]
    missing = [shard for shard in found if not os.path.isfile(shard)]
    if missing or not found:
        raise MissingDataError(
            f"{where}: there is no shard {missing[0] if missing else pattern}. Give a folder with "
            f".tar files in it or right below it, or a pattern: /data/train-{{000..146}}.tar."
        )
    return found


def expand_pattern(pattern: str, where: str) -> list[str]:
    """Return all names that a pattern means, which has braces as those of bash.

    {a,b,c}         each of them; they may hold braces in their turn, or be empty
    {0..10} {3..0}  numbers up or down; {000..10} with zeros to one width; {0..10..5} in steps
    """
    try:
        if len(pattern) > LONGEST_PATTERN:
            raise ValueError(f"it has more than {LONGEST_PATTERN} characters")
        return _expand(pattern)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: {pattern[:200]} is no pattern of shards: {error}. It should look like "
            f"/data/train-{{000..146}}.tar or /data/{{train,more}}-*.tar."
        ) from error


def _expand(text: str) -> list[str]:
    """Expand the first brace, what is in it, and what follows it."""
    begin = text.find("{")
    before, depth, cuts = text.partition("{")[0], 0, [begin]
    if "}" in before:
        raise ValueError("a } without its {")
    if begin < 0:
        return [text]
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth or (text[at] == "," and depth == 1):
            cuts.append(at)
        if not depth:
            break
    else:
        raise ValueError("a { without its }")
    inside = [text[one + 1 : other] for one, other in pairwise(cuts)]
    if len(inside) > 1:
        chosen = [name for each in inside for name in _expand(each)]
    else:
        chosen = _expand_range(inside[0]) or [f"{{{each}}}" for each in _expand(inside[0])]
    following = _expand(text[at + 1 :])
    if len(chosen) * len(following) > MOST_NAMES:
        raise ValueError(f"it means more than {MOST_NAMES:,} names")
    return [before + name + rest for name in chosen for rest in following]


def _expand_range(text: str) -> list[str]:
    found = _NUMBERS.fullmatch(text)
    if not found:
        return []
    first, last, step = int(found[1]), int(found[2]), int(found[3] or 1) or 1
    if abs(last - first) // step >= MOST_NAMES:
        raise ValueError(f"it means more than {MOST_NAMES:,} names")
    sign = 1 if first <= last else -1
    padded = any(re.match(r"0\d", each) for each in found.groups()[:2])
    width = max(len(found[1]), len(found[2])) if padded else 0
    return [f"{value:0{width}d}" for value in range(first, last + sign, sign * step)]
