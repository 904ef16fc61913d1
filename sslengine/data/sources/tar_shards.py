"""`webdataset`: images in tar files, read at random by where they lie in them.

DATA_PATHS is a folder of .tar files or a pattern: /data/train-{000..146}.tar, /data/*.tar. Members
that follow each other and share their name up to the first dot are one sample: 0001.jpg, 0001.cls.
IMAGE_COLUMN says which ending holds the image, if there are several: left.png is that of
1.left.png. Labels come from .cls, or from the key LABEL_COLUMN ("label") of .json. One look through
the shards finds where everything lies.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import string
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

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
from sslengine.data.options import ShardOptions, SplitOptions, own
from sslengine.data.sources.base import EncodedSource
from sslengine.data.sources.disk import IMAGE_SUFFIXES
from sslengine.data.sources.tar_samples import ShardError, TarReader, read_fields
from sslengine.errors import DataError, MissingDataError, readable
from sslengine.registry import register_data_source

log = logging.getLogger("sslengine")

OPEN_SHARDS = 64  # in each process
MOST_NAMES = 1_000_000  # of a pattern
DEEPEST = 20  # braces in braces
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")


@register_data_source("webdataset")
class TarSource(EncodedSource):
    """The samples of all shards, shard by shard."""

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
        self._has_fields = bool(options.FIELDS)
        kind = f"shards, {'begins, ' * self._has_fields}classes"
        index = indexed(
            f"{kind}, {ending!r}, {key!r}, {self._columns.LABEL_SEPARATOR!r}: "
            f"{'|'.join(self._shards)}",
            f"looking through the shards {pattern}",
            self._find,
            cached=self._columns.CACHE_INDEX,
        )
        self._names, self._shard = index.strings("paths"), index["shard"]
        self._offset, self._size, self._labels = index["offset"], index["size"], index["labels"]
        self._begin = index["begin"] if self._has_fields else None
        if not len(self):
            raise DataError(
                f"{self.where}: no image in {len(self._shards)} shards, the first is "
                f"{self._shards[0]}. Looked for members that end in "
                f"{ending or ', '.join(IMAGE_SUFFIXES)}."
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
        if self._begin is None:
            return super().column(name, where)
        try:
            self._field(name, 0)
        except ShardError as error:
            raise DataError(f"{where}: {error}") from error
        return ReadLater(partial(self._field, name), len(self))

    def _field(self, name: str, index: int) -> Any:
        assert self._begin is not None
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

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def __del__(self) -> None:
        self.close() if hasattr(self, "_open") else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def _find(self) -> FoundImages:
        progress = ProgressLog("looking through shards", total=len(self._shards))
        reader = TarReader(self._columns.IMAGE_COLUMN, self._columns.LABEL_COLUMN, self.where)
        classes, counts = ClassNumbers(self._columns.LABEL_SEPARATOR), array("q")
        offsets, sizes, begins = array("q"), array("q"), array("q")
        stamps = [stamp(shard) for shard in self._shards]

        def read_names() -> Iterator[bytes]:
            for number, shard in enumerate(self._shards):
                before = len(offsets)
                for sample in reader.read(shard):
                    offsets.append(sample.offset)
                    sizes.append(sample.size)
                    begins.append(sample.begin)
                    try:
                        classes.add(sample.label)
                    except LabelError as error:
                        place = f"{self.where}: {readable(shard)}: {readable(sample.name)}"
                        raise DataError(f"{place}: {error}") from error
                    yield os.fsencode(sample.name)
                counts.append(len(offsets) - before)
                progress.tell(number + 1, "shards")

        arrays = {
            **make_string_arrays("paths", read_names()),
            **classes.arrays(),
            "offset": np.frombuffer(offsets, np.int64),
            "size": np.frombuffer(sizes, np.int64),
            **({"begin": np.frombuffer(begins, np.int64)} if self._has_fields else {}),
            "shard": np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        }
        if reader.without_image:
            log.info("%s: %d samples have no image", self.where, reader.without_image)
        return FoundImages(arrays, stamps, len(offsets))


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
        if not inside:
            raise DataError(
                f"{where}: no file in the folder {path}, or in the folders right below it, ends in "
                f".tar."
            )
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
            f"{where}: there is no shard {missing[0] if missing else pattern}. Give a folder of "
            f".tar files, or a pattern such as /data/train-{{000..146}}.tar."
        )
    return found


def expand_pattern(pattern: str, where: str) -> list[str]:
    """Return all names that a pattern means, which has braces as those of bash.

    {a,b,c}         each of them; they may hold braces in their turn, or be empty
    {0..10} {3..0}  numbers up or down; {000..10} with zeros to one width; {0..10..5} in steps
    {a..e}          letters
    \\{ \\, \\}        these characters themselves; so is {a}, which is neither of the above
    """
    try:
        return _expand(pattern, 0, 0)[0]
    except ValueError as error:
        raise DataError(
            f"{where}: {pattern} is no pattern of shards: {error}. It should look like "
            f"/data/train-{{000..146}}.tar or /data/{{train,more}}-*.tar; \\{{ is a brace itself."
        ) from error


def _expand(text: str, at: int, depth: int) -> tuple[list[str], int, bool]:
    """Return the names up to the brace that ends here, its place, and whether commas part them."""
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} braces in each other")
    done: list[str] = []
    names, commas = [""], False
    while at < len(text):
        sign = text[at]
        chosen = [sign]
        if sign == "}":
            break
        if sign == "\\":
            at += 1
            chosen = [text[at : at + 1] or "\\"]
        elif sign == "," and depth:
            done, names, commas = done + names, [""], True
            chosen = [""]
        elif sign == "{":
            begin = at + 1
            inside, at, several = _expand(text, begin, depth + 1)
            ranged = None if several else _expand_range(text[begin:at])
            chosen = ranged or (inside if several else [f"{{{each}}}" for each in inside])
        if len(names) * len(chosen) + len(done) > MOST_NAMES:
            raise ValueError(f"it means more than {MOST_NAMES:,} names")
        names = [name + each for name in names for each in chosen]
        at += 1
    if (at < len(text)) != bool(depth):
        raise ValueError("a { without its }" if depth else "a } without its {")
    return done + names, at, commas


def _expand_range(text: str) -> list[str] | None:
    numbers, letters = _NUMBERS.fullmatch(text), _LETTERS.fullmatch(text)
    known = string.ascii_uppercase + string.ascii_lowercase
    if not (numbers or letters):
        return None
    begin, end, by = (numbers or letters or [""]).groups()  # type: ignore[union-attr]
    first, last = (int(each) if numbers else known.index(each) for each in (begin, end))
    step = abs(int(by or 1)) or 1
    if abs(last - first) // step >= MOST_NAMES:
        raise ValueError(f"it means more than {MOST_NAMES:,} names")
    values = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if letters:
        return [known[value] for value in values]
    padded = any(re.match(r"-?0\d", each) for each in (begin, end))
    width = max(len(begin), len(end)) if padded else 0
    return [f"{value:0{width}d}" for value in values]
