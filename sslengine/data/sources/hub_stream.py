"""`huggingface_stream`: a dataset of the Hugging Face hub, or a folder as the hub ships it, read by
the package `datasets` in streaming mode: nothing is stored.

DATA_PATHS is the dataset's name (user/name), the folder, or one parquet file. IMAGE_COLUMN names
the column; without it the image is the one column of images. The label is in LABEL_COLUMN, else in
the one column of class labels, or in `label`. Its shards are the parts of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import datasets
except ImportError:
    datasets = None

from sslengine.data.manifest.tables import expect_column
from sslengine.data.options import HubStreamOptions, SplitOptions, own
from sslengine.data.sources.base import FINAL
from sslengine.data.sources.hugging_face import (
    file_bytes,
    find_image_column,
    find_label_column,
    holds_images,
    keep_encoded,
)
from sslengine.data.sources.stream import Streamed, StreamSource
from sslengine.errors import DataError, listing
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
        self._place = Path(name).expanduser()
        path = str(self._place)
        if not _is_parquet(self._place):  # a folder's card may name addresses, or code be in it
            self.expect_trust(name)
        try:
            rows = _open(path, chosen)
            features = rows.features or rows._resolve_features().features
        except Exception as error:  # of `datasets`, the hub and the formats of files
            raise DataError(
                f"{self.where}: `datasets` cannot stream {name!r}: {type(error).__name__}: {error}"
            ) from error
        place = f"config.DATA.{split}", name
        self._column = find_image_column(features, chosen.IMAGE_COLUMN, *place)
        self._label = ""
        if self.reads_labels:
            self._label = find_label_column(features, chosen.LABEL_COLUMN, *place)
            if not self._label:
                raise DataError(
                    f"{self.where}: labels are asked for, and no column is one of class labels or "
                    f"called label. Name it with config.DATA.{split}.LABEL_COLUMN.\n"
                    f"  It has: {listing(features)}"
                )
            self.know_classes(getattr(features[self._label], "names", None) or ())
        for each in self.fields:
            expect_column(list(features), each, f"config.DATA.{split}.FIELDS", name)
        rows = rows.select_columns(list(filter(None, (self._column, self._label, *self.fields))))
        images = [each for each in self.fields if holds_images(features[each])]
        self._rows = keep_encoded(rows, self._column, *images)
        self.parts = int(self._rows.num_shards)

    def files_of(self, rows: NDArray[np.int64]) -> list[str]:
        below = [self._place] if self._place.is_file() else sorted(self._place.rglob("*"))
        return [str(each) for each in below if each.is_file()]

    def part(self, number: int) -> Iterator[Streamed]:
        rows = self._rows.shard(num_shards=self.parts, index=number)
        # By `iter`: as an iterator it would leave out what it takes for other loader workers' part.
        stored = (
            (image, label, dict(zip(self.fields, fields)))
            for some in rows.iter(AT_ONCE)
            for image, label, *fields in zip(
                some[self._column],
                some.get(self._label) or repeat(None),
                *(map(file_bytes, some[each]) for each in self.fields),
            )
        )
        for row, (image, label, fields) in enumerate(stored):
            if image and "://" in (image["path"] or "") and not image["bytes"]:
                self.expect_trust(image["path"])
            content, problem = _content(image)
            yield Streamed(f"row {row} of shard {number}{problem}", content, label, fields)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet" and path.is_file()


def _open(path: str, chosen: HubStreamOptions) -> Any:
    if _is_parquet(Path(path)):
        files = {chosen.HUB_SPLIT: path}
        return datasets.load_dataset(
            "parquet", data_files=files, split=chosen.HUB_SPLIT, streaming=True
        )
    return datasets.load_dataset(
        path, chosen.CONFIGURATION or None, split=chosen.HUB_SPLIT, streaming=True
    )


def _content(image: Mapping[str, Any] | None) -> tuple[bytes, str]:
    """Return the bytes of an image; where there are none, why, for its name."""
    if image is None or not (image["bytes"] or image["path"]):
        return b"", " (it has no image)"
    try:
        if image["bytes"] or "://" not in image["path"]:
            return file_bytes(image), ""
        fsspec: Any = import_module("fsspec")
        with fsspec.open(image["path"], "rb") as file:
            return file.read(), ""
    except FINAL as error:
        return b"", f" ({error})"
