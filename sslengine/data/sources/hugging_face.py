"""Datasets of the package `datasets`. IMAGE_COLUMN and LABEL_COLUMN name the columns; without them
the image is the one column of images, and the label the one of class labels, or `label`. Images are
read as the bytes that are stored, without decoding.

`huggingface_dataset`: one on disk, as save_to_disk left it, or as the hub ships it: parquet files
with the images in them. DATA_PATHS is its folder, or one parquet file. One with several splits
gives TRAIN its `train`, and TEST its `validation`, `val` or `test`, whichever is there first. A
parquet file cannot be read row by row, so `datasets` copies the rows once into its own cache
($HF_DATASETS_CACHE), from where they are mapped into memory.

`huggingface_stream`: one of the hub, or a folder as the hub ships it, in streaming mode: nothing is
stored. DATA_PATHS is its name (user/name), the folder, or one parquet file. Its shards are the
parts of the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import datasets
except ImportError:
    datasets = None

from sslengine.data.decode.files import expect_there, read_file
from sslengine.data.manifest.classes import ClassNumbers, LabelError, count_classes
from sslengine.data.manifest.index import ReadLater
from sslengine.data.manifest.paths import SPLITS, choose_split, data_path
from sslengine.data.manifest.tables import expect_column
from sslengine.data.options import ColumnOptions, HubStreamOptions, SplitOptions, own
from sslengine.data.sources.base import FINAL, EncodedSource
from sslengine.data.sources.stream import Streamed, StreamSource
from sslengine.errors import DataError, listing
from sslengine.registry import register_data_source

log = logging.getLogger("sslengine")

AT_ONCE = 16  # rows of a stream
NO_LABELS = "labels are asked for, and no column is one of class labels or called label: name it."


@register_data_source("huggingface_dataset")
class HuggingFaceSource(EncodedSource):
    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._split, self._key = split, f"config.DATA.{split}"
        self._root, self.where = data_path(options, split, position)
        rows = self._load()
        columns = own(options, ColumnOptions)
        place = self._key, self._root
        self._image = find_image_column(rows.features, columns.IMAGE_COLUMN, *place)
        self._label = find_label_column(rows.features, columns.LABEL_COLUMN, *place)
        self._labels: NDArray[Any] | None = None
        if self._label:
            self._labels, self.class_names = self._read_labels(rows, columns.LABEL_SEPARATOR)
            self.num_classes = len(self.class_names) or count_classes(self._labels)
        # Workers get the names of its files, which `datasets` maps into memory.
        self._rows = keep_encoded(rows.select_columns([self._image]), self._image)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> bytes:
        content: bytes | None = file_bytes(self._rows[index][self._image])
        if not content:
            raise ValueError("the row has no image")
        return content

    def labels(self) -> NDArray[np.generic]:
        if self._labels is None:
            raise DataError(f"{self._key}.LABEL_COLUMN: {NO_LABELS}")
        return self.expect_labels(
            self._labels,
            f"have none in the column {self._label!r} (nan, None or -1). Leave such rows out",
        )

    def column(self, name: str, where: str) -> Sequence[Any]:
        rows = self._load()
        expect_column(rows.column_names, name, where, self._root)
        if holds_images(rows.features[name]):
            stored = keep_encoded(rows.select_columns([name]), name)
            return ReadLater(partial(_read_image, stored, name), len(stored))
        return list(rows.with_format(None)[name][:])

    def _read_labels(self, rows: Any, separator: str) -> tuple[NDArray[Any], list[str]]:
        """Read numbers, and the names of the classes: those that the set knows, or the text."""
        column = rows.features[self._label]
        feature = getattr(column, "feature", column)  # of a list
        names = list(getattr(feature, "names", None) or ())
        kind = str(getattr(feature, "dtype", ""))
        where = f"{self._key}.LABEL_COLUMN: {self._label!r} of {self._root}"
        if not kind.startswith(("int", "uint", "bool", "float", "string", "large_string")):
            raise DataError(
                f"{where} holds {column}; expected numbers, names, class labels or lists."
            )
        if feature is column:
            labels = np.asarray(rows.with_format("numpy")[self._label][:])
            if labels.dtype.kind in "iub":  # a gap makes numbers floats
                return labels, names
        given = ClassNumbers(separator)
        try:
            for label in rows.with_format(None)[self._label][:]:
                given.add(label)
            return given.numbered(names)
        except LabelError as error:
            raise DataError(f"{where}: {error}") from error

    def path(self, index: int) -> str:
        return f"row {index} of {self._root}"

    def files_of(self, rows: NDArray[np.int64]) -> list[str] | None:
        """Name its own files, and those of images of which the rows have the path alone."""
        from pyarrow import compute

        stored = self._parquet() or [each["filename"] for each in self._rows.cache_files]
        images = self._rows.data.column(self._image)
        inside, path = (compute.struct_field(images, each) for each in ("bytes", "path"))
        outside = compute.and_(compute.is_null(inside), compute.is_valid(path))
        return [*map(str, stored), *path.filter(outside).to_pylist()] if stored else None

    def _load(self) -> Any:
        expect_package(self.where)
        expect_there(self._root, self.where)
        parquet = self._parquet()
        if parquet:
            count = len(parquet)
            log.info(
                "%s: `datasets` copies %d parquet files into its cache, once", self.where, count
            )
        try:
            if parquet:
                with hide_bars():
                    return datasets.Dataset.from_parquet([str(each) for each in parquet])
            # The state that save_to_disk wrote has the format that set_format chose.
            found = datasets.load_from_disk(str(self._root)).with_format(None)
        except Exception as error:  # of pyarrow and of `datasets`
            raise DataError(
                f"{self.where}: {parquet[0] if parquet else self._root} cannot be read: it is no "
                f"parquet file, nor a folder of these or a dataset that save_to_disk wrote: {error}"
            ) from error
        if not isinstance(found, datasets.DatasetDict):
            return found
        names = [name for name in SPLITS[self._split] if name in found]
        if not names:
            raise self._no_split(found)
        return found[names[0]]

    def _parquet(self) -> list[Path]:
        """Find the parquet files of the split."""
        root = self._root
        if root.is_file():
            return [root]
        files = sorted(
            each for each in root.rglob("*")
            if each.suffix.lower() == ".parquet"
            and not any(part[0] == "." for part in each.relative_to(root).parts)
        )  # fmt: skip
        found = choose_split(files, root, self._split, self.where) if files else []
        if files and not found:
            raise self._no_split(str(each.relative_to(root)) for each in files)
        return found

    def _no_split(self, found: Iterable[str]) -> DataError:
        return DataError(
            f"{self.where}: {self._root} has nothing for {self._split} "
            f"({', '.join(SPLITS[self._split])}). It has {listing(found)}. Name one of them."
        )


@register_data_source("huggingface_stream")
class HubStream(StreamSource):
    """Rows of the dataset's shards, each with one image."""

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        chosen = own(options, HubStreamOptions)
        name = options.DATA_PATHS[position] if options.DATA_PATHS else ""
        expect_package(self.where)
        self._place = Path(name).expanduser()
        path, files = str(self._place), dict[str, Any]()
        if self._place.suffix.lower() == ".parquet" and self._place.is_file():
            path, files = "parquet", {"data_files": {chosen.HUB_SPLIT: path}}
        else:  # a folder's card may name addresses, or code be in it
            self.expect_trust(name)
        try:
            wanted = {"split": chosen.HUB_SPLIT, "streaming": True, **files}
            rows = datasets.load_dataset(path, chosen.CONFIGURATION or None, **wanted)
            features = rows.features or rows._resolve_features().features
        except Exception as error:  # of `datasets`, the hub and the formats of files
            raise DataError(
                f"{self.where}: `datasets` cannot stream {name!r}: {type(error).__name__}: {error}"
            ) from error
        key = f"config.DATA.{split}"
        self._column = find_image_column(features, chosen.IMAGE_COLUMN, key, name)
        self._label = ""
        if self.reads_labels:
            self._label = find_label_column(features, chosen.LABEL_COLUMN, key, name)
            if not self._label:
                raise DataError(f"{key}.LABEL_COLUMN: {NO_LABELS}\n  It has: {listing(features)}")
            self.know_classes(getattr(features[self._label], "names", None) or ())
        for each in self.fields:
            expect_column(list(features), each, f"{key}.FIELDS", name)
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
            dict(zip(some, values)) for some in rows.iter(AT_ONCE) for values in zip(*some.values())
        )
        for number_of_row, row in enumerate(stored):
            content, problem = self._content(row[self._column])
            fields = {name: file_bytes(row[name]) for name in self.fields}
            name = f"row {number_of_row} of shard {number}{problem}"
            yield Streamed(name, content, row.get(self._label), fields)

    def _content(self, image: Mapping[str, Any] | None) -> tuple[bytes, str]:
        """Return the bytes of an image; where there are none, why, for its name."""
        try:
            if image and not image["bytes"] and "://" in (image["path"] or ""):
                self.expect_trust(image["path"])
                fsspec: Any = import_module("fsspec")
                with fsspec.open(image["path"], "rb") as file:
                    return file.read(), ""
            content = file_bytes(image)
            return (content, "") if content else (b"", " (it has no image)")
        except FINAL as error:
            return b"", f" ({error})"


def expect_package(where: str) -> None:
    if datasets is None:
        raise DataError(f"{where}: to read it install datasets: pip install datasets.")


def find_image_column(features: Any, wanted: str, key: str, place: Any) -> str:
    """Return the name of the one column of images, or the one that is wanted.

    key: of the split's options. place: where the dataset is.
    """
    if wanted:
        expect_column(list(features), wanted, f"{key}.IMAGE_COLUMN", place)
        return wanted
    found = [name for name, each in features.items() if holds_images(each)]
    if len(found) != 1:
        raise DataError(
            f"{key}.IMAGE_COLUMN: {len(found) or 'none'} of the columns of {place} hold images. "
            f"Name one.\n  It has: {listing(features)}"
        )
    return str(found[0])


def find_label_column(features: Any, wanted: str, key: str, place: Any) -> str:
    """Return the name of the wanted column, of the one of class labels, or `label`; "": none."""
    if wanted:
        expect_column(list(features), wanted, f"{key}.LABEL_COLUMN", place)
        return wanted
    found = [name for name, each in features.items() if isinstance(each, datasets.ClassLabel)]
    return str(found[0]) if len(found) == 1 else "label" if "label" in features else ""


def keep_encoded(rows: Any, *columns: str) -> Any:
    """Return rows whose images in these columns are not decoded."""
    for name in columns:
        rows = rows.cast_column(name, datasets.Image(decode=False))
    return rows


def _read_image(rows: Any, name: str, index: int) -> Any:
    return file_bytes(rows[index][name])


def file_bytes(value: Any) -> Any:
    """Return the bytes of an image that is not decoded, None if it has none; all else unchanged."""
    if not isinstance(value, dict) or {*value} != {"bytes", "path"}:
        return value
    return value["bytes"] or (read_file(value["path"]) if value["path"] else None)


def holds_images(feature: Any) -> bool:
    """Tell a column of images. In a parquet file of another program they are bytes, or
    {bytes, path}."""
    kind = feature["bytes"] if isinstance(feature, dict) and "bytes" in feature else feature
    is_binary = str(getattr(kind, "dtype", "")).endswith("binary")
    return isinstance(kind, datasets.Image) or is_binary


@contextmanager
def hide_bars() -> Iterator[None]:
    """Hide the bars of `datasets`: each rank would show one."""
    shown = not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
