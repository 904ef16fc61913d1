"""The samples of one tar file: members that follow each other and share a name up to the first dot.

A tar file may hold anything. What is read of it is limited, and each mistake in it is a ShardError
that names the file and the member.
"""

from __future__ import annotations

import json
import logging
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from sslengine.data.sources.disk import IMAGE_SUFFIXES
from sslengine.errors import DataError, SSLEngineError, listing, readable

log = logging.getLogger("sslengine")

LARGEST_IMAGE = 2**31 - 2**12  # bytes that one read of Linux gives
LARGEST_LABEL = 2**16  # of .cls
LARGEST_JSON = 2**24
LARGEST_HEADER = 2**20  # of what precedes a member, for example a long name


class ShardError(DataError):
    """A tar file that cannot be read, or holds what it should not."""


class Sample(NamedTuple):
    name: str  # of the member that holds the image
    offset: int
    size: int
    label: Any
    begin: int  # where the header of its first member is


Members = dict[str, tarfile.TarInfo]


class TarReader:
    """Read shard after shard. Which members are images depends on their own shard alone.

    ending: of the members that hold images (IMAGE_COLUMN); "": any that is called like an image.
    label_key: where in .json the label is, instead of in .cls; None: labels are not read.
    """

    def __init__(self, ending: str, label_key: str | None, where: str) -> None:
        self._ending = ending.lstrip(".").lower()
        self._label_key, self._where = label_key, where
        self._noted: set[str] = set()  # endings that a warning has named
        self.without_image = 0

    def read(self, shard: str) -> Iterator[Sample]:
        try:
            with open(shard, "rb") as file:
                yield from self.read_open(file, shard)
        except OSError as error:
            raise ShardError(f"{self._name(shard)} cannot be read: {error}") from error

    def read_open(self, file: BinaryIO, shard: str) -> Iterator[Sample]:
        """Read a shard that is open. shard: what to call it."""
        place = self._name(shard)
        try:
            whole = os.fstat(file.fileno()).st_size
            ending = self._ending or self._find_ending(file, place)
            with _open(file) as tar:
                for members in _group(tar, place):
                    image = members.get(ending) if ending else _find_plain(members)
                    if image is None:
                        self._leave_out(members, ending, place)
                        continue
                    _expect_whole(image, whole, f"{place}: {readable(image.name)}")
                    label = self._read_label(tar, members, place)
                    begin = next(iter(members.values())).offset
                    yield Sample(image.name, image.offset_data, image.size, label, begin)
                # tarfile takes anything that is no header for the end: a damaged shard seems
                # shorter.
                block = os.pread(file.fileno(), tarfile.BLOCKSIZE, tar.offset)
                if block.strip(b"\0") or len(block) not in (0, tarfile.BLOCKSIZE):
                    told = f"unexpected end of data: no header at byte {tar.offset:,}"
                    raise tarfile.ReadError(told)
        except (SSLEngineError, MemoryError):
            raise
        except Exception as error:  # of a tar file that is none, tarfile raises anything
            raise ShardError(
                f"{place} is not a whole tar file: {error or type(error).__name__}. A "
                f"compressed one cannot be read at random: unpack it (gunzip), JPEGs do not get "
                f"smaller by it."
            ) from error

    def _name(self, shard: str) -> str:
        return f"{self._where}: {readable(shard)}"

    def _find_ending(self, file: BinaryIO, place: str) -> str:
        """Find what images of a shard end in: left.png; "" if it is .png, .jpg or the like alone.

        A shard with images of that kind has no others: .left.png is a mask or a thumbnail there.
        """
        first: list[tarfile.TarInfo] = []
        with _open(file) as tar:
            for members in _group(tar, place):
                if _find_plain(members):
                    return ""
                first = first or [
                    member for ending, member in members.items() if ending.endswith(IMAGE_SUFFIXES)
                ]
        endings = [_ending(each) for each in first]
        if len(first) > 1:
            names = " and ".join(readable(each.name) for each in first)
            raise ShardError(
                f"{place}: {names} are images of one sample. Name the ending of those to "
                f"read: IMAGE_COLUMN: {readable(endings[0])}"
            )
        if endings and endings[0] not in self._noted:
            self._noted.add(endings[0])
            log.warning(
                "%s: no image is called .jpg, .png or the like alone; taken are those that end in "
                ".%s (IMAGE_COLUMN)", place, readable(endings[0]),
            )  # fmt: skip
        return next(iter(endings), "")

    def _leave_out(self, members: Members, ending: str, place: str) -> None:
        """Warn of the first one: a stream does not know how many there are."""
        self.without_image += 1
        if self.without_image == 1:
            log.warning(
                "%s: the sample of %s has no image (%s). Samples without one are left out.",
                place, readable(next(iter(members.values())).name),
                readable(f".{ending}" if ending else ".jpg, .png or the like"),
            )  # fmt: skip

    def _read_label(self, tar: tarfile.TarFile, members: Members, place: str) -> Any:
        if self._label_key is None:
            return None
        if "cls" in members and not self._label_key:
            return _parse_classes(_read_text(tar, members["cls"], place, LARGEST_LABEL))
        if "json" not in members:
            return None
        key = self._label_key or "label"
        label = _read_json(tar, members["json"], place).get(key)
        for each in label if isinstance(label, list) else [label]:
            if each is not None and not isinstance(each, (str, int, float)):
                inside, kind = readable(members["json"].name), type(each).__name__
                raise ShardError(f"{place}: {inside}: {key!r} is no text or number, but a {kind}.")
        return label


def read_fields(file: BinaryIO, begin: int, names: Sequence[str], place: str) -> dict[str, Any]:
    """Read members of the sample that begins there, by their endings, or keys of its .json."""
    with _open(file, begin) as tar:
        members = next(_group(tar, place))
        return {name: _read_field(tar, members, name, place) for name in names}


def _read_field(tar: tarfile.TarFile, members: Members, name: str, place: str) -> Any:
    ending = name.lstrip(".").lower()
    if ending not in members:
        told = _read_json(tar, members["json"], place) if "json" in members else {}
        if name not in told:
            first = readable(next(iter(members.values())).name)
            raise ShardError(
                f"{place}: the sample of {first} has no {name!r}. It has the members "
                f"{listing(members)}" + (f" and in .json {listing(told)}." if told else ".")
            )
        return told[name]
    if ending == "json":
        return _read_json(tar, members[ending], place)
    if ending.endswith("npy"):
        array = _read_member(tar, members[ending], place, LARGEST_IMAGE)
        return np.load(BytesIO(array), allow_pickle=False)
    if f".{ending}".endswith(IMAGE_SUFFIXES):
        return _read_member(tar, members[ending], place, LARGEST_IMAGE)
    text = _read_text(tar, members[ending], place, LARGEST_JSON)
    return int(text) if ending == "cls" and text.strip().isdecimal() else text


def _read_json(tar: tarfile.TarFile, member: tarfile.TarInfo, place: str) -> dict[str, Any]:
    inside = f"{place}: {readable(member.name)}"
    try:
        told = json.loads(_read_text(tar, member, place, LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{inside} does not hold a JSON object: {error}") from error
    if not isinstance(told, dict):
        raise ShardError(f"{inside} does not hold a JSON object: it is a {type(told).__name__}.")
    return told


def _expect_whole(image: tarfile.TarInfo, whole: int, place: str) -> None:
    """whole: bytes of the shard."""
    if image.issparse():
        raise ShardError(f"{place} is stored with holes (sparse): pack the shard again.")
    if image.size > LARGEST_IMAGE:
        raise ShardError(f"{place} has {image.size:,} bytes; {LARGEST_IMAGE:,} are the most.")
    if image.offset_data + image.size > whole:
        raise ShardError(f"{place}: not a whole tar file: unexpected end of data")


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, shard: str, most: int) -> bytes:
    place = f"{shard}: {readable(member.name)}"
    if member.size > most:
        raise ShardError(f"{place} has {member.size:,} bytes; {most:,} are the most.")
    file: Any = tar.fileobj
    content: bytes = os.pread(file.fileno(), member.size, member.offset_data)
    if len(content) < member.size:
        raise ShardError(f"{place}: not a whole tar file: unexpected end of data")
    return content


def _read_text(tar: tarfile.TarFile, member: tarfile.TarInfo, shard: str, most: int) -> str:
    try:
        return _read_member(tar, member, shard, most).decode()
    except UnicodeDecodeError as error:
        raise ShardError(f"{shard}: {readable(member.name)} is not UTF-8: {error}") from error


def _parse_classes(text: str) -> Any:
    """Read `["cat", "dog"]` or `[3, 7]`, several classes; any other text is one."""
    if text.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            told = json.loads(text)
            if all(isinstance(each, (str, int, float)) for each in told):
                return told
    return text


class _Limited:
    """A file of which tarfile reads a little at a time: a header may claim any size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.fileno = file.seek, file.tell, file.fileno

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= max(LARGEST_HEADER, LARGEST_JSON):
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return self._file.read(size)


def _open(file: BinaryIO, begin: int = 0) -> tarfile.TarFile:
    file.seek(begin)
    limited: Any = _Limited(file)
    return tarfile.open(fileobj=limited, mode="r:")


def _find_plain(members: Members) -> tarfile.TarInfo | None:
    """Find the image that ends in .png, .jpg ... alone."""
    found = (each for ending, each in members.items() if f".{ending}" in IMAGE_SUFFIXES)
    return next(found, None)


def _ending(member: tarfile.TarInfo) -> str:
    return member.name.rpartition("/")[2].partition(".")[2].lower()


def _group(tar: Any, place: str) -> Iterator[Members]:
    """Yield the members of each sample, by their endings in small letters."""
    current, members = "", Members()
    for member in tar:
        tar.members = []  # it would keep all of them
        folder, _, name = member.name.rpartition("/")
        if not member.isreg() or name.startswith("."):
            continue
        stem, ending = name.partition(".")[0], _ending(member)
        if f"{folder}/{stem}" != current and members:
            yield members
            members = {}
        current = f"{folder}/{stem}"
        if ending in members:
            raise ShardError(
                f"{place}: {readable(member.name)} is there twice in one sample: "
                f"{readable(members[ending].name)}"
            )
        members[ending] = member
    if members:
        yield members
