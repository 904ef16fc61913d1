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
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sslengine.data.loading.progress import Progress
from sslengine.data.manifest.index_cache import Found, indexed, stamp, string_arrays
from sslengine.data.manifest.shared_paths import by_folder, path_arrays
from sslengine.data.options import ShardOptions, SplitOptions, own
from sslengine.data.sources.base import EncodedSource
from sslengine.data.sources.braces import expand_braces
from sslengine.data.sources.class_numbers import ClassNumbers, LabelError, all_known, count_classes
from sslengine.data.sources.disk import IMAGE_SUFFIXES
from sslengine.data.sources.parts import of_split
from sslengine.data.sources.paths import data_path
from sslengine.data.sources.tar_samples import Sample, Samples
from sslengine.errors import DataError, MissingDataError, readable
from sslengine.registry import register_data_source

log = logging.getLogger("sslengine")

OPEN_SHARDS = 64  # in each process


@register_data_source("webdataset")
class TarSource(EncodedSource):
    """The samples of all shards, shard by shard."""

    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._split = split
        shards = own(options, ShardOptions)
        self._ending, self._label_key = shards.IMAGE_COLUMN, shards.LABEL_COLUMN
        self._separator = shards.LABEL_SEPARATOR
        pattern, self.where = data_path(options, split, position)
        if options.COPY_TO_LOCAL_DISK and not pattern.exists():
            raise DataError(
                f"{self.where}: COPY_TO_LOCAL_DISK copies a folder of shards, not a pattern."
            )
        self._shards = find_shards(str(pattern), self.where, split)
        index = indexed(
            f"shards, classes, {self._ending!r}, {self._label_key!r}, {self._separator!r}: "
            f"{'|'.join(self._shards)}",
            f"looking through the shards {pattern}",
            self._find,
            cached=shards.CACHE_INDEX,
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
        self.num_classes = count_classes(self._labels.array)
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
                f"have none, the first is {readable(self.path(int(missing[0])))}. Looked for .cls "
                f"and for {self._label_key or 'label'!r} in .json "
                f"(config.DATA.{self._split}.LABEL_COLUMN)."
            ),
        )

    def path(self, index: int) -> str:
        shard = self._shards[int(self._shard.array[index])]
        return f"{os.fsdecode(self._names[index])} in {shard}"

    def files_of(self, rows: NDArray[np.int64]) -> list[str]:
        return [self._shards[shard] for shard in np.unique(self._shard.array[rows])]

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
        samples = Samples(self._ending, self._label_key, self.where)
        classes, counts = ClassNumbers(self._separator), array("q")
        offsets, sizes = array("q"), array("q")
        stamps = [stamp(shard) for shard in self._shards]

        def names() -> Iterator[bytes]:
            for number, shard in enumerate(self._shards):
                before = len(offsets)
                for sample in samples.of(shard):
                    offsets.append(sample.offset)
                    sizes.append(sample.size)
                    self._add(classes, sample, shard)
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
        if samples.without_image:
            log.info("%s: %d samples have no image", self.where, samples.without_image)
        arrays["shard"] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return Found(arrays, stamps, len(offsets))

    def _add(self, classes: ClassNumbers, sample: Sample, shard: str) -> None:
        try:
            classes.add(sample.label)
        except LabelError as error:
            place = f"{self.where}: {readable(shard)}: {readable(sample.name)}"
            raise DataError(f"{place}: {error}") from error


def expanded(pattern: str, where: str) -> list[str]:
    try:
        return expand_braces(pattern)
    except ValueError as error:
        raise DataError(
            f"{where}: {pattern} is no pattern of shards: {error}. It should look like "
            f"/data/train-{{000..146}}.tar or /data/{{train,more}}-*.tar; \\{{ is a brace itself."
        ) from error


def find_shards(pattern: str, where: str, split: str = "TRAIN") -> list[str]:
    """The tar files that a folder holds or that a pattern means, in order."""
    path = Path(pattern)
    if path.is_dir():
        found = _in_folder(path, where, split)
    elif path.is_file():  # by any name
        found = [pattern]
    else:
        found = [
            shard
            for each in expanded(pattern, where)
            for shard in (sorted(glob.glob(each)) if glob.has_magic(each) else [each])
        ]
    if not found and path.is_dir():
        raise DataError(
            f"{where}: no file in the folder {path}, or in the folders right below it, ends in "
            f".tar."
        )
    missing = [shard for shard in found if not os.path.isfile(shard)]
    if missing or not found:
        raise MissingDataError(
            f"{where}: there is no shard {missing[0] if missing else pattern}. Give a folder of "
            f".tar files, or a pattern such as /data/train-{{000..146}}.tar."
        )
    return found


def _in_folder(folder: Path, where: str, split: str) -> list[str]:
    """Right in it, else one folder below; of the split, where their paths name that."""
    levels = (
        sorted(each for each in folder.glob(level) if each.suffix.lower() == ".tar")
        for level in ("[!.]*", "[!.]*/[!.]*")
    )
    found = next(filter(None, levels), [])
    return list(map(str, of_split(found, folder, split, where) or found))
