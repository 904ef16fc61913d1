"""The labels of a split: one column for each source, read whole when the dataset is opened.

LABEL_TYPE says what a label is: `standard`, what LABEL_SOURCES has; `sample_index`, the
sample's own number; `zero`. A label source is either the data source itself, with labels
from itself (a folder's name, the torchvision set's class ...), or `disk_filelist`: a .npy
file of numbers, of names, or of one row of class indicators for each image. Numbers stay
what they are, -1 among them, which losses leave out; of text, and of sources whose samples have
several classes, see `sources/class_numbers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.classes import Classes, Column, Labels, in_numbers_of
from sslengine.data.manifest.shared import SharedArray
from sslengine.data.options import SplitOptions, TableOptions, own
from sslengine.data.sources.base import DataSource, build_sources
from sslengine.data.sources.class_numbers import numbered_names
from sslengine.data.sources.disk import load_array
from sslengine.data.sources.paths import label_path
from sslengine.errors import DataError


def standard_labels(
    options: SplitOptions, split: str, sources: Sequence[DataSource], needed: bool = False
) -> list[Labels]:
    """What LABEL_SOURCES has, one column for each data source; none where nothing asks for it.

    Nor of a stream, which has the label of a sample when it comes to it.
    """
    columns: list[Labels] = []
    if any(source.is_stream for source in sources):
        return columns
    if options.LABEL_TYPE != "standard" and not (options.chooses_by_class or needed):
        return columns
    by_column = bool(own(options, TableOptions).LABEL_COLUMNS)
    for position, name in enumerate(options.LABEL_SOURCES):
        source = sources[position]
        from_file = name == "disk_filelist"
        where = f"config.DATA.{split}.LABEL_SOURCES.{position}"
        labels = (
            _read(options, split, position)
            if from_file
            else Labels(
                _of_source(source, where),
                tuple(source.class_names),
                where,
                by_column,
            )
        )
        if len(labels.column) != len(source):
            file = f" in {label_path(options, split, position).path}" if from_file else ""
            raise DataError(
                f"{where}: there are {len(labels.column)} labels"
                f"{file} for {len(source)} images; expected one for each."
            )
        columns.append(labels)
    return columns


def count_classes(options: SplitOptions) -> int:
    """The number of TRAIN's classes: those that have names, or one more than the largest number."""
    sources = build_sources(options, "TRAIN")
    if sources[0].is_stream and sources[0].num_classes:
        return sources[0].num_classes
    labels = standard_labels(options, "TRAIN", sources)
    if not labels:
        raise DataError(
            "config.DATA.TRAIN: the number of classes is `auto`, and there are no labels. Set "
            "LABEL_SOURCES, and LABEL_TYPE to standard; or give the number."
        )
    classes = Classes.of(labels[0])
    return classes.width or len(classes.names) or max(classes.numbers, default=-1) + 1


def known_classes(found: Sequence[Labels], sources: Sequence[DataSource]) -> list[Classes]:
    """Of a split's labels; a stream says its classes before it is read."""
    first = sources[0]
    if first.is_stream and first.num_classes:
        names = tuple(first.class_names)
        numbers = frozenset() if names else frozenset(range(first.num_classes))
        return [Classes(names, numbers, first.where)]
    return [Classes.of(each) for each in found]


def label_columns(
    options: SplitOptions, split: str, standard: Sequence[Column], num_samples: int
) -> list[Column | range]:
    """The labels that samples carry; `standard` are those of the samples that are used."""
    count = len(options.DATA_SOURCES)
    if options.LABEL_TYPE == "standard":
        if not standard:
            raise DataError(
                f"config.DATA.{split}.LABEL_TYPE is standard, and there are no LABEL_SOURCES. "
                f"Name them, or set LABEL_TYPE to sample_index."
            )
        return list(standard)
    if options.LABEL_TYPE == "sample_index":
        return [range(num_samples)] * count
    return [np.zeros(num_samples, np.int32)] * count


def shared(columns: Sequence[Column | range]) -> list[SharedArray | range]:
    """The columns for all processes; a column that is there twice is kept once."""
    kept = {id(each): each if isinstance(each, range) else SharedArray.of(each) for each in columns}
    return [kept[id(each)] for each in columns]


def in_train_numbers(
    standard: Sequence[Labels], train: Sequence[Classes], sources: Sequence[DataSource]
) -> list[Column]:
    """The columns, in TRAIN's numbers; unchanged where TRAIN's classes are not known."""
    if not train:
        return [each.column for each in standard]
    columns = []
    for position, (labels, source) in enumerate(zip(standard, sources, strict=False)):
        classes = train[min(position, len(train) - 1)]
        columns.append(in_numbers_of(classes, labels, source.path))
    return columns


def _of_source(source: DataSource, where: str) -> NDArray[np.generic]:
    """What `labels` gives; DataError unless these are class numbers, or rows for the classes."""
    found = np.asarray(source.labels())
    name, classes = type(source).__name__, len(source.class_names)
    if found.ndim == 1 and found.dtype.kind == "f" and all(map(_is_whole, found.tolist())):
        found = found.astype(np.int64)
    if found.dtype.kind not in ("iub" if found.ndim == 1 else "iubf"):
        other = next(each for each in found.tolist() if not _is_whole(each))
        raise DataError(
            f"{where}: a label of {name} is {other!r}; expected the number of a class, from 0 (its "
            f"name is in class_names), or a row of indicators of the classes."
        )
    most = int(found.max()) + 1 if found.ndim == 1 and len(found) else found.shape[-1]
    if classes and (most > classes or (found.ndim == 2 and most < classes)):
        raise DataError(
            f"{where}: labels of {name} are of {most} classes, and class_names has {classes}."
        )
    return found


def _is_whole(label: Any) -> bool:
    return isinstance(label, (int, float)) and float(label).is_integer() and abs(label) < 2**63


def _read(options: SplitOptions, split: str, position: int) -> Labels:
    file = label_path(options, split, position)
    where = f"{file.where} ({file.path})"
    labels = load_array(file, mmap=False)
    kind = labels.dtype.kind
    if kind in "SU" and labels.ndim == 1:
        return Labels(*numbered_names(labels.tolist(), where), where)
    if kind in "iub" and labels.ndim == 2:
        return Labels(_narrow(labels), (), where, indicators=True)
    if kind == "f" and labels.ndim == 2:
        several = _are_indicators(labels)
        return Labels(labels.astype(np.int8 if several else np.float32), (), where, indicators=True)
    if kind in "iubf" and labels.ndim == 1:
        odd = [each for each in labels.tolist() if not _is_whole(each)] if kind == "f" else []
        if odd:
            raise DataError(f"{where}: a label is {odd[0]}; expected whole numbers.")
        return Labels(labels.astype(np.int64), (), where)
    raise DataError(
        f"{file.where}: {file.path} must hold a number or a name for each image, or a row of "
        f"class indicators; it has the shape {labels.shape} and the type {labels.dtype}."
    )


def _narrow(rows: Column) -> Column:
    """Indicators take a byte each."""
    few = rows.size and int(rows.max()) <= 1 and int(rows.min()) >= -1
    return rows.astype(np.int8 if few else np.int64)


def _are_indicators(rows: Column) -> bool:
    """Of several classes each, or with gaps: not probabilities, of which one may be 1."""
    return bool(np.isin(rows, (-1, 0, 1)).all()) and bool(
        (rows < 0).any() or (rows.sum(axis=1) != 1).any()
    )
