"""DATA_LIMIT_SAMPLING.SHARE and LIST: training on few labels, whose images are always the same.

SHARE is drawn from the labels and the seed alone, so it is the same on any number of ranks. LIST
is a file: a table (.csv, .tsv, .parquet) with a column of paths, or a name in each line, as the
lists of SimCLR have them:

    n01440764_10029.JPEG                 the end of an image's path, from a folder's beginning
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.data.manifest.classes import Column
from sslengine.data.manifest.subset import Rows
from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import DataSource
from sslengine.data.sources.paths import how_far
from sslengine.data.sources.tables import IMAGE_NAMES, open_table
from sslengine.errors import DataError, MissingDataError, listing, readable


def share_of_each_class(labels: Tensor, share: float, seed: int) -> Tensor:
    """The numbers of the drawn images, ascending; of a class at least one. Images of label -1 are
    not drawn."""
    draw = torch.Generator().manual_seed(seed)
    labels = labels.cpu()
    some = []
    for each in labels[labels >= 0].unique():
        rows = (labels == each).nonzero().flatten()
        count = max(1, round(share * len(rows)))
        some.append(rows[torch.randperm(len(rows), generator=draw)[:count]])
    return torch.cat(some).sort().values if some else torch.zeros(0, dtype=torch.int64)


def with_labels_in_use(
    options: SplitOptions, split: str, rows: Rows, labels: Column | None, source: DataSource
) -> Rows:
    """Those of the rows that SHARE or LIST keeps. labels: of these rows."""
    sampling = options.DATA_LIMIT_SAMPLING
    where = f"config.DATA.{split}.DATA_LIMIT_SAMPLING"
    if sampling.SHARE:
        if labels is None or labels.ndim != 1:
            raise DataError(
                f"{where}.SHARE needs LABEL_SOURCES with one class for each image. LIST names "
                f"images of any kind."
            )
        kept = share_of_each_class(torch.from_numpy(labels), sampling.SHARE, sampling.SEED)
        drawn: Rows = np.sort(np.asarray(rows, np.int64)[kept.numpy()])
        return drawn
    if sampling.LIST:
        listed = np.zeros(len(source), np.bool_)
        listed[_listed(Path(sampling.LIST), source, f"{where}.LIST")] = True
        every = np.asarray(rows, np.int64)
        return np.sort(every[listed[every]])
    return rows


def _listed(file: Path, source: DataSource, where: str) -> NDArray[np.int64]:
    """The rows of the source that the file names."""
    wanted = set(_names(file, where))
    found: dict[str, int] = {}
    for row in range(len(source)):
        for name in _ends(source.path(row)):
            if name in wanted and found.setdefault(name, row) != row:
                raise DataError(
                    f"{where}: {file}: {readable(name)} is both {readable(source.path(row))} and "
                    f"{readable(source.path(found[name]))}. Put the folder before the name."
                )
    missing = sorted(wanted - found.keys())
    if missing or not wanted:
        example = f"; an image's path is for example {readable(source.path(0))}"
        raise DataError(
            f"{where}: {file}: {len(missing)} of {len(wanted)} images are not in the data, the "
            f"first is {readable(missing[0])}{example}."
            if missing
            else f"{where}: {file} names no image{example}."
        )
    return np.unique(np.fromiter(found.values(), np.int64, len(found)))


def expect_list(file: Path, where: str) -> None:
    if not file.is_file():
        why = "it is a folder" if file.is_dir() else how_far(file)
        raise MissingDataError(f"{where}: there is no file {file}: {why}")


def _names(file: Path, where: str) -> Iterator[str]:
    expect_list(file, where)
    if file.suffix.lower() not in (".csv", ".tsv", ".parquet"):
        text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
        yield from (line.strip().removeprefix("./") for line in text.splitlines() if line.strip())
        return
    columns, rows = open_table(file)
    column = next((each for each in IMAGE_NAMES if each in columns), None)
    if column is None:
        raise DataError(
            f"{where}: {file}: expected a column {listing(IMAGE_NAMES)}; there are "
            f"{listing(columns)}."
        )
    yield from (str(each) for (each,) in rows([list(columns).index(column)]))


def _ends(path: str) -> Iterator[str]:
    """The path, and what remains of it from each of its folders."""
    yield path
    for place, sign in enumerate(path):
        if sign == "/":
            yield path[place + 1 :]
