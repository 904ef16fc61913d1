"""`webdataset`: images in tar files, read at random by where they lie in them.

DATA_PATHS is a folder of .tar files or a pattern: /data/train-{000..146}.tar, /data/*.tar. Members
that follow each other and share their name up to the first dot are one sample: 0001.jpg, 0001.cls.
IMAGE_COLUMN says which ending holds the image, if there are several. Labels come from .cls, or from
the key LABEL_COLUMN ("label") of .json. One look through the shards finds where everything lies.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tarfile
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sslengine.data.index_cache import Found, indexed, stamp, string_arrays
from sslengine.data.options import SplitOptions
from sslengine.data.progress import Progress
from sslengine.data.shared_paths import by_folder, path_arrays
from sslengine.data.sources.base import EncodedSource
from sslengine.data.sources.class_numbers import ClassNumbers, all_known
from sslengine.data.sources.disk import IMAGE_SUFFIXES
from sslengine.data.sources.paths import data_path
from sslengine.errors import DataError
from sslengine.registry import register_data_source

OPEN_SHARDS = 64  # in each process


class _Sample(NamedTuple):
    name: str  # of the member that holds the image
    offset: int
    size: int
    label: Any


@register_data_source("webdataset")
class TarSource(EncodedSource):
    """The samples of all shards, shard by shard."""

    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._split = split
        self._ending, self._label_key = options.IMAGE_COLUMN, options.LABEL_COLUMN
        pattern, self.where = data_path(options, split, position)
        if options.COPY_TO_LOCAL_DISK and not pattern.exists():
            raise DataError(
                f"{self.where}: COPY_TO_LOCAL_DISK copies a folder of shards, not a pattern."
            )
        self._shards = find_shards(str(pattern), self.where)
        index = indexed(
            f"shards, classes, {self._ending!r}, {self._label_key!r}: {'|'.join(self._shards)}",
            f"looking through the shards {pattern}",
            self._find,
            cached=options.CACHE_INDEX,
        )
        self._names, self._shard = index.paths(), index["shard"]
        self._offset, self._size, self._labels = index["offset"], index["size"], index["labels"]
        if not len(self):
            raise DataError(
                f"{self.where}: no image in {len(self._shards)} shards, the first is "
                f"{self._shards[0]}. Looked for members that end in "
                f"{self._ending or ', '.join(IMAGE_SUFFIXES)}."
            )
        self.class_names = [os.fsdecode(name) for name in index.strings("classes")]
        self.num_classes = max(0, int(self._labels.array.max()) + 1)
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> bytes:
        shard, size = int(self._shard.array[index]), int(self._size.array[index])
        content = os.pread(self._descriptor(shard), size, int(self._offset.array[index]))
        if len(content) < size:
            raise EOFError(f"the shard ends within it: {len(content)} of {size} bytes")
        return content

    def labels(self) -> NDArray[np.generic]:
        return all_known(
            self._labels.array,
            lambda missing: (
                f"{self.where}: labels are asked for, and {missing.size} of {len(self)} samples "
                f"have none, the first is {self.path(int(missing[0]))}. "
                f"Looked for .cls and for {self._label_key or 'label'!r} "
                f"in .json (config.DATA.{self._split}.LABEL_COLUMN)."
            ),
        )

    def path(self, index: int) -> str:
        shard = self._shards[int(self._shard.array[index])]
        return f"{os.fsdecode(self._names[index])} in {shard}"

    def _descriptor(self, shard: int) -> int:
        file = self._open.pop(shard, None) or open(self._shards[shard], "rb", buffering=0)  # noqa: SIM115
        self._open[shard] = file  # the last one that was used
        if len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)[1].close()
        return file.fileno()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def __del__(self) -> None:
        self.close() if hasattr(self, "_open") else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def _find(self) -> Found:
        progress = Progress("looking through shards", total=len(self._shards))
        classes, counts = ClassNumbers(), array("q")
        offsets, sizes = array("q"), array("q")
        stamps = [stamp(shard) for shard in self._shards]

        def names() -> Iterator[bytes]:
            for number, shard in enumerate(self._shards):
                before = len(offsets)
                for sample in self._samples(shard):
                    offsets.append(sample.offset)
                    sizes.append(sample.size)
                    classes.add(sample.label)
                    yield os.fsencode(sample.name)
                counts.append(len(offsets) - before)
                progress.tell(number + 1, "shards")

        arrays = {
            **path_arrays(by_folder(names())),
            **string_arrays("shards", map(os.fsencode, self._shards)),
            **classes.arrays(),
            "offset": np.frombuffer(offsets, np.int64),
            "size": np.frombuffer(sizes, np.int64),
        }
        arrays["shard"] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return Found(arrays, stamps, len(offsets))

    def _samples(self, shard: str) -> Iterator[_Sample]:
        try:
            with tarfile.open(shard, "r:") as tar:
                for members in _groups(tar):
                    image = self._image_of(members)
                    if image is not None:
                        label = self._label_of(tar, members, shard)
                        yield _Sample(image.name, image.offset_data, image.size, label)
        except (tarfile.TarError, OSError) as error:
            raise DataError(
                f"{self.where}: {shard} is not a whole tar file: {error}. A compressed one cannot "
                f"be read at random: unpack it (gunzip), JPEGs do not get smaller by it."
            ) from error

    def _image_of(self, members: dict[str, tarfile.TarInfo]) -> tarfile.TarInfo | None:
        if self._ending:
            return members.get(self._ending.lstrip(".").lower())
        images = (ending for ending in members if f".{ending}" in IMAGE_SUFFIXES)
        return members.get(next(images, ""))

    def _label_of(
        self, tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], shard: str
    ) -> Any:
        if "cls" in members and not self._label_key:
            return _content(tar, members["cls"]).decode()
        if "json" not in members:
            return None
        try:
            return json.loads(_content(tar, members["json"])).get(self._label_key or "label")
        except (ValueError, AttributeError) as error:
            name = members["json"].name
            raise DataError(f"{name} in {shard} does not hold a JSON object: {error}") from error


def find_shards(pattern: str, where: str) -> list[str]:
    """The tar files that a folder holds or that a pattern means, in order."""
    path = Path(pattern)
    if path.is_dir():
        found = sorted(map(str, path.glob("*.tar")))
    else:
        found = [
            shard
            for each in expand_braces(pattern)
            for shard in (sorted(glob.glob(each)) if glob.has_magic(each) else [each])
        ]
    if not found and path.is_dir():
        raise DataError(f"{where}: no file in the folder {path} ends in .tar.")
    missing = [shard for shard in found if not os.path.isfile(shard)]
    if missing or not found:
        raise DataError(
            f"{where}: there is no shard {missing[0] if missing else pattern}. Give a folder of "
            f".tar files, or a pattern such as /data/train-{{000..146}}.tar."
        )
    return found


def expand_braces(pattern: str) -> list[str]:
    """As a shell does it: {000..146} and {train,val}."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if numbers:
        first, last = numbers.groups()
        digits = len(first) if len(first) == len(last) or first.startswith("0") else 0
        choices: Sequence[str] = [f"{n:0{digits}}" for n in range(int(first), int(last) + 1)]
    else:
        choices = match[1].split(",")
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [whole for each in choices for whole in expand_braces(before + each + after)]


def _groups(tar: Any) -> Iterator[dict[str, tarfile.TarInfo]]:
    """The members of each sample, by their endings in small letters."""
    current, members = "", dict[str, tarfile.TarInfo]()
    for member in tar:
        tar.members = []  # it would keep all of them
        folder, _, name = member.name.rpartition("/")
        if not member.isreg() or name.startswith("."):
            continue
        stem, _, ending = name.partition(".")
        if f"{folder}/{stem}" != current and members:
            yield members
            members = {}
        current = f"{folder}/{stem}"
        members[ending.lower()] = member
    if members:
        yield members


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file else b""
