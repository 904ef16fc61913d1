"""`webdataset_stream`: tar shards on a server, one after another.

DATA_PATHS is a pattern of addresses, https://server/train-{000..146}.tar; also of other kinds that
fsspec knows (s3://, gs://), or of files. Each worker copies one shard at a time into a nameless
temporary file, which is removed with the process. What a shard holds is as in `webdataset`, labels
too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib import import_module
from shutil import copyfileobj
from typing import Any, BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from sslengine.data.options import SplitOptions, StreamOptions, own
from sslengine.data.sources.stream import Streamed, StreamSource
from sslengine.data.sources.tar_samples import TarReader, read_fields
from sslengine.data.sources.tar_shards import expand_pattern, find_shards
from sslengine.errors import DataError, readable
from sslengine.registry import register_data_source

TIMEOUT = 60.0  # seconds without any byte
AT_ONCE = 2**20  # bytes
# Answers of a server that another attempt does not change: 408 and 429 ask for one.
LASTING = {400, 401, 403, 404, 405, 410, 451}


@register_data_source("webdataset_stream")
class TarStream(StreamSource):
    """The samples of shards that are read from their beginnings to their ends."""

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
        self.know_classes()

    def files_of(self, rows: NDArray[np.int64]) -> list[str]:
        return [each for each in self._shards if "://" not in each]

    def part(self, number: int) -> Iterator[Streamed]:
        shard = self._shards[number]
        with tempfile.TemporaryFile() as file:
            self._copy(shard, file)
            file.seek(0)
            for sample in self._tars.read_open(file, shard):
                content = os.pread(file.fileno(), sample.size, sample.offset)
                fields = read_fields(file, sample.begin, self.fields, shard)
                yield Streamed(f"{sample.name} in {shard}", content, sample.label, fields)

    def _copy(self, shard: str, file: BinaryIO) -> None:
        if shard.startswith(("http://", "https://")):
            _download(shard, file)
        elif "://" in shard:
            _copy_by_fsspec(shard, file, self.where)
        else:
            with open(shard, "rb") as stored:
                copyfileobj(stored, file, AT_ONCE)


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
