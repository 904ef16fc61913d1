"""`huggingface_stream`: a dataset of the Hugging Face hub, or a folder as the hub ships it, read by
the package `datasets` in streaming mode: nothing is stored.

DATA_PATHS is the dataset's name (user/name) or the folder. IMAGE_COLUMN names the column; without
it the image is the one column of images. Its shards are the parts of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

try:
    import datasets
except ImportError:
    datasets = None

from sslengine.data.options import HubStreamOptions, SplitOptions, own
from sslengine.data.sources.hugging_face import image_column
from sslengine.data.sources.regular_file import read_file
from sslengine.data.sources.stream import Streamed, StreamSource
from sslengine.errors import DataError
from sslengine.registry import register_data_source

AT_ONCE = 16  # rows


@register_data_source("huggingface_stream")
class HubStream(StreamSource):
    """Rows of the dataset's shards, each with one image."""

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        chosen = own(options, HubStreamOptions)
        name = options.DATA_PATHS[position] if options.DATA_PATHS else ""
        if datasets is None:
            raise DataError(f"{self.where}: to read it install datasets: pip install datasets.")
        path = str(Path(name).expanduser())
        if not Path(path).exists():
            self.expect_trust(name)
        try:
            rows = datasets.load_dataset(
                path, chosen.CONFIGURATION or None, split=chosen.HUB_SPLIT, streaming=True
            )
            features = rows.features or rows._resolve_features().features
        except Exception as error:  # of `datasets`, the hub and the formats of files
            raise DataError(
                f"{self.where}: `datasets` cannot stream {name!r}: {type(error).__name__}: {error}"
            ) from error
        self._column = image_column(features, chosen.IMAGE_COLUMN, self, split, name)
        rows = rows.select_columns([self._column])
        self._rows = rows.cast_column(self._column, datasets.Image(decode=False))
        self.parts = int(self._rows.num_shards)

    def part(self, number: int) -> Iterator[Streamed]:
        rows = self._rows.shard(num_shards=self.parts, index=number)
        # By `iter`: as an iterator it would leave out what it takes for other loader workers' part.
        stored = (each for some in rows.iter(AT_ONCE) for each in some[self._column])
        for row, image in enumerate(stored):
            content = image["bytes"] or _content(image["path"])
            yield Streamed(f"row {row} of shard {number}", content)


def _content(path: str) -> bytes:
    if "://" not in path:
        return read_file(path)
    fsspec: Any = import_module("fsspec")
    with fsspec.open(path, "rb") as file:
        content: bytes = file.read()
    return content
