"""The labels of a split: one column for each source, read whole when the data set is opened.

LABEL_TYPE says what a label is: `standard`, what LABEL_SOURCES has; `sample_index`, the
sample's own number; `zero`. A label source is either the data source itself, with labels
of its own (a folder's name, the torchvision set's class ...), or `disk_filelist`: a .npy
file of numbers, of names, or of one row of class indicators for each image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.options import SplitOptions
from sslengine.data.shared import SharedArray
from sslengine.data.sources.base import DataSource
from sslengine.data.sources.disk import load_array
from sslengine.data.sources.paths import label_path
from sslengine.errors import DataError

Column = NDArray[Any]


def standard_labels(
    options: SplitOptions, split: str, sources: Sequence[DataSource]
) -> list[Column]:
    """What LABEL_SOURCES has, one column for each data source; none where nothing asks for it."""
    columns: list[Column] = []
    if options.LABEL_TYPE != "standard" and not options.chooses_by_class:
        return columns
    for position, name in enumerate(options.LABEL_SOURCES):
        source = sources[position]
        from_file = name == "disk_filelist"
        labels = _read(options, split, position) if from_file else source.labels()
        if len(labels) != len(source):
            file = f" in {label_path(options, split, position).path}" if from_file else ""
            raise DataError(
                f"config.DATA.{split}.LABEL_SOURCES.{position}: there are {len(labels)} labels"
                f"{file} for {len(source)} images; expected one for each."
            )
        columns.append(labels)
    return columns


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


def _read(options: SplitOptions, split: str, position: int) -> Column:
    file = label_path(options, split, position)
    labels = load_array(file, mmap=False)
    kind = labels.dtype.kind
    if kind in "SU" and labels.ndim == 1:
        numbers: Column = np.unique(labels, return_inverse=True)[1]
        return numbers
    if kind in "iub" and labels.ndim in (1, 2):
        return labels.astype(np.int64)
    if kind == "f" and labels.ndim == 2:
        return labels.astype(np.float32)
    raise DataError(
        f"{file.where}: {file.path} must hold a number or a name for each image, or a row of "
        f"class indicators; it has the shape {labels.shape} and the type {labels.dtype}."
    )
