"""The samples and labels of a split: one column for each source, read whole when it is opened.

LABEL_TYPE says what a label is: `standard`, what LABEL_SOURCES has; `sample_index`, the
sample's own number; `zero`. A label source is either the data source itself, with labels
from itself (a folder's name, the torchvision set's class ...), or `disk_filelist`: a .npy
file of numbers, of names, or of one row of class indicators for each image. Numbers stay
what they are, -1 among them, which losses leave out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sslengine.data.manifest.classes import (
    Classes,
    Column,
    LabelColumn,
    count_classes,
    number_names,
    translate,
)
from sslengine.data.manifest.index import SharedArray
from sslengine.data.manifest.paths import Located, label_path
from sslengine.data.manifest.subset import Rows, draw_limited, hold_out, keep_few_labels, take
from sslengine.data.manifest.tables import load_array
from sslengine.data.options import HoldOut, SplitOptions, TableOptions, own
from sslengine.data.sources.base import DataSource, build_sources
from sslengine.errors import DataError, readable


def standard_labels(
    options: SplitOptions, split: str, sources: Sequence[DataSource], needed: bool = False
) -> list[LabelColumn]:
    """Read what LABEL_SOURCES has, one column for each data source; none where nothing asks for it.

    Nor of a stream, which has the label of a sample when it comes to it.
    """
    columns: list[LabelColumn] = []
    if any(source.is_stream for source in sources):
        return columns
    if options.LABEL_TYPE != "standard" and not (options.chooses_by_class or needed):
        return columns
    by_column = bool(own(options, TableOptions).LABEL_COLUMNS)
    for position, (name, source) in enumerate(zip(options.LABEL_SOURCES, sources, strict=False)):
        where = f"config.DATA.{split}.LABEL_SOURCES.{position}"
        if name == "disk_filelist":
            labels = _read_file(label_path(options, split, position))
        else:
            names = tuple(source.class_names)
            labels = LabelColumn(_ask_source(source, where), names, where, by_column)
        if len(labels.column) != len(source):
            raise DataError(
                f"{where}: there are {len(labels.column)} labels for {len(source)} images "
                f"({labels.where}); expected one for each."
            )
        columns.append(labels)
    return columns


def choose_samples(
    options: SplitOptions,
    split: str,
    held: HoldOut,
    sources: Sequence[DataSource],
    found: Sequence[LabelColumn],
    columns: Sequence[Column],
) -> tuple[Rows, list[Column]]:
    """Return the rows of the sources that the split uses, and the columns of their labels.

    found: the labels as the source has them; columns: in TRAIN's numbers.
    """
    source, own_labels = sources[0], found[0].column if found else None
    rows = hold_out(held, split, len(source), own_labels, source.column)

    def first() -> Column | None:
        return take(columns[0], rows) if columns else None

    rows = take(rows, draw_limited(options, split, len(rows), first()))
    paths = lambda: map(source.path, range(len(source)))  # noqa: E731
    rows = keep_few_labels(options.DATA_LIMIT_SAMPLING, split, rows, first(), paths)
    return rows, [take(column, rows) for column in columns]


def count_train_classes(options: SplitOptions) -> int:
    """Count TRAIN's classes: those that have names, or one more than the largest number."""
    sources = build_sources(options, "TRAIN")
    if sources[0].is_stream and sources[0].num_classes:
        return sources[0].num_classes
    labels = standard_labels(options, "TRAIN", sources)
    if not labels:
        raise DataError(
            "config.DATA.TRAIN: the number of classes is `auto`, and there are no labels. Set "
            "LABEL_SOURCES, and LABEL_TYPE to standard; or give the number."
        )
    classes = Classes.collect(labels[0])
    return classes.width or len(classes.names) or max(classes.numbers, default=-1) + 1


def known_classes(found: Sequence[LabelColumn], sources: Sequence[DataSource]) -> list[Classes]:
    """Return those of a split's labels; a stream says its classes before it is read."""
    first = sources[0]
    if first.is_stream and first.num_classes:
        names = tuple(first.class_names)
        numbers = frozenset() if names else frozenset(range(first.num_classes))
        return [Classes(names, numbers, first.where)]
    return [Classes.collect(each) for each in found]


def label_columns(
    options: SplitOptions, split: str, standard: Sequence[Column], num_samples: int
) -> list[Column | range]:
    """Return the labels that samples carry; `standard` are those of the samples that are used."""
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


def share_columns(columns: Sequence[Column | range]) -> list[SharedArray | range]:
    """Put the columns where all processes see them; one that is there twice is kept once."""
    kept = {
        id(each): each if isinstance(each, range) else SharedArray.share(each) for each in columns
    }
    return [kept[id(each)] for each in columns]


def translate_to_train(
    standard: Sequence[LabelColumn], train: Sequence[Classes], sources: Sequence[DataSource]
) -> list[Column]:
    """Return the columns in TRAIN's numbers; unchanged where TRAIN's classes are not known."""
    if not train:
        return [each.column for each in standard]
    return [
        translate(train[min(position, len(train) - 1)], labels, source.path)
        for position, (labels, source) in enumerate(zip(standard, sources, strict=False))
    ]


def _ask_source(source: DataSource, where: str) -> Column:
    """Return what `labels` gives; DataError unless these are class numbers, or rows of classes."""
    where, names = f"{where} ({type(source).__name__})", len(source.class_names)
    found = _expect_classes(np.asarray(source.labels()), where)
    most = count_classes(found)
    if names and (most > names or (found.ndim == 2 and most < names)):
        raise DataError(f"{where}: labels are of {most} classes, and class_names has {names}.")
    return found


def _read_file(file: Located) -> LabelColumn:
    where = f"{file.where} ({file.path})"
    labels = load_array(*file)
    if labels.dtype.kind in "SU" and labels.ndim == 1:
        return LabelColumn(*number_names(labels.tolist(), where), where)
    labels = _expect_classes(labels, where)
    if labels.ndim == 1:
        return LabelColumn(labels.astype(np.int64), (), where)
    # Of several classes each, or with gaps: not probabilities, of which one may be 1.
    several = np.isin(labels, (-1, 0, 1)).all() and (
        labels.dtype.kind != "f" or (labels < 0).any() or (labels.sum(axis=1) != 1).any()
    )
    other = np.float32 if labels.dtype.kind == "f" else np.int64
    return LabelColumn(labels.astype(np.int8 if several else other), (), where, indicators=True)


def _expect_classes(labels: Column, where: str) -> Column:
    """Return class numbers, of which a table may have made floats, or rows of class indicators."""
    if labels.ndim == 1 and labels.dtype.kind == "f":
        whole = np.isfinite(labels) & (np.floor(labels) == labels) & (np.abs(labels) < 2.0**63)
        labels = labels.astype(np.int64) if whole.all() else labels
    if labels.ndim not in (1, 2) or labels.dtype.kind not in (
        "iub" if labels.ndim == 1 else "iubf"
    ):
        raise DataError(
            f"{where}: expected the number of a class for each image, or a row of class "
            f"indicators; got an array of shape {labels.shape} and type {labels.dtype}: "
            f"{readable(str(labels.tolist()[:3]))}"
        )
    return labels
