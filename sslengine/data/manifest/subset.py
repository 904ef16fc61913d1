"""Which samples of a source a split has: DATA.HOLD_OUT, DATA_LIMIT, and training on few labels.

Each choice depends on the options, the seed and what the source holds alone: the same on every
rank, in every engine and process. HOLD_OUT.SHARE of TRAIN's images is TEST, and is not trained on.
Of those DATA_LIMIT takes some, and DATA_LIMIT_SAMPLING.SHARE or LIST some of these.

Drawn by numpy's legacy generator, whose stream is frozen: a subset is the same under every version
of numpy, and is the one that VISSL takes under the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.data.decode.files import expect_file
from sslengine.data.manifest.classes import NO_CLASS, Column
from sslengine.data.manifest.tables import IMAGE_NAMES, open_table
from sslengine.data.options import DataLimitSampling, HoldOut, SplitOptions
from sslengine.errors import DataError, listing, readable

HOLD_OUT = "config.DATA.HOLD_OUT"

Numbers = NDArray[np.int64]
Rows = Numbers | range


def take(column: Column | range, rows: Rows) -> Any:
    """Return the labels, or numbers, of these samples."""
    if isinstance(rows, range):
        return column
    return rows if isinstance(column, range) else column[rows]


# ---- HOLD_OUT


def hold_out(
    options: HoldOut,
    split: str,
    total: int,
    labels: Column | None,
    column: Callable[[str, str], Sequence[Any]],
) -> Rows:
    """Return the numbers of the split's samples, in order.

    labels: of all samples, if they are known. column: what DataSource.column gives.
    """
    if not options.SHARE:
        return range(total)
    draw = np.random.RandomState(options.SEED)
    if options.GROUP_COLUMN:
        held = _draw_groups(
            draw, column(options.GROUP_COLUMN, f"{HOLD_OUT}.GROUP_COLUMN"), options.SHARE
        )
    elif options.STRATIFIED:
        held = _draw_of_each_class(draw, labels, options.SHARE)
    else:
        held = draw.permutation(total)[: round(options.SHARE * total)]
    if not 0 < len(held) < total:
        raise DataError(
            f"{HOLD_OUT}.SHARE: {options.SHARE:g} of the {total} images of TRAIN"
            f"{' in whole groups' if options.GROUP_COLUMN else ''} is "
            f"{'all' if len(held) else 'none'} of them; both splits need some."
        )
    is_held = np.zeros(total, np.bool_)
    is_held[held] = True
    return np.flatnonzero(is_held if split == "TEST" else ~is_held)


def _draw_of_each_class(
    draw: np.random.RandomState, labels: Column | None, share: float
) -> Numbers:
    """Draw the share of each class, rounded; of a class with one image none."""
    labels = _expect_single(labels, f"{HOLD_OUT}.STRATIFIED", "false draws from all images")
    chosen = []
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label))
        chosen.append(members[: min(round(share * len(members)), len(members) - 1)])
    return np.concatenate(chosen)


def number_groups(column: Sequence[Any]) -> Numbers:
    """Number the values. Spaces around a value do not count, as around labels."""
    names = np.char.strip(np.asarray(column).astype(str))
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _draw_groups(draw: np.random.RandomState, column: Sequence[Any], share: float) -> Numbers:
    """Take groups in random order, each that does not exceed the share."""
    group = number_groups(column)
    sizes, wanted = np.bincount(group), share * len(group)
    chosen: list[int] = []
    for each in draw.permutation(len(sizes)):
        if sizes[[*chosen, each]].sum() <= wanted + 0.5:
            chosen.append(int(each))
    return np.flatnonzero(np.isin(group, chosen))


def _expect_single(labels: Column | None, where: str, otherwise: str) -> Column:
    if labels is None or labels.ndim != 1:
        raise DataError(f"{where} needs LABEL_SOURCES with one class for each image; {otherwise}.")
    return labels


# ---- DATA_LIMIT


def draw_limited(options: SplitOptions, split: str, total: int, labels: Column | None) -> Rows:
    """Return the numbers of the samples that DATA_LIMIT takes, among `total`."""
    most, sampling = options.DATA_LIMIT, options.DATA_LIMIT_SAMPLING
    skip, where = sampling.SKIP_NUM_SAMPLES, f"config.DATA.{split}.DATA_LIMIT"
    if most < 0 or (most == total and not skip):
        return range(total)
    if most + skip > total:
        after = f" after {skip} skipped ones" if skip else ""
        raise DataError(
            f"{where}: requires {most} samples{after}; the dataset has {total}. -1 takes all."
        )
    draw = np.random.RandomState(sampling.SEED)
    if not sampling.IS_BALANCED:
        return draw.choice(total, skip + most, replace=False)[skip:]
    labels = _expect_single(labels, f"{where}: IS_BALANCED", "false draws from all images")
    classes = np.unique(labels[labels != NO_CLASS])
    if not 0 < len(classes) <= most:
        raise DataError(f"{where}: {most} samples cannot be balanced over {len(classes)} classes.")
    chosen = []
    for number, label in enumerate(classes):
        members = np.flatnonzero(labels == label)
        # Where it does not divide, one more of each of the first classes.
        wanted, skipped = (
            count // len(classes) + (number < count % len(classes)) for count in (most, skip)
        )
        if wanted + skipped > len(members):
            raise DataError(
                f"{where}: IS_BALANCED requires {wanted + skipped} samples of class {label}; "
                f"it has {len(members)}."
            )
        chosen.append(draw.choice(members, skipped + wanted, replace=False)[skipped:])
    return np.concatenate(chosen)


# ---- DATA_LIMIT_SAMPLING.SHARE and LIST: few labels


def draw_of_each_class(labels: Tensor, share: float, seed: int) -> Tensor:
    """Draw the numbers of images, ascending; of a class at least one. Images of label -1 are not
    drawn."""
    draw = torch.Generator().manual_seed(seed)
    labels = labels.cpu()
    some = []
    for each in labels[labels >= 0].unique():
        rows = (labels == each).nonzero().flatten()
        count = max(1, round(share * len(rows)))
        some.append(rows[torch.randperm(len(rows), generator=draw)[:count]])
    return torch.cat(some).sort().values if some else torch.zeros(0, dtype=torch.int64)


def keep_few_labels(
    sampling: DataLimitSampling,
    split: str,
    rows: Rows,
    labels: Column | None,
    paths: Callable[[], Iterator[str]],
) -> Rows:
    """Return those of the rows that SHARE or LIST keeps.

    labels: of these rows. paths: makes those of all images of the source.
    """
    where = f"config.DATA.{split}.DATA_LIMIT_SAMPLING"
    if sampling.SHARE:
        labels = _expect_single(labels, f"{where}.SHARE", "LIST names images of any kind")
        kept = draw_of_each_class(torch.from_numpy(labels), sampling.SHARE, sampling.SEED)
        return np.sort(np.asarray(rows, np.int64)[kept.numpy()])
    if sampling.LIST:
        listed = _find_listed(Path(sampling.LIST), paths, f"{where}.LIST")
        every = np.asarray(rows, np.int64)
        return np.sort(every[np.isin(every, listed)])
    return rows


def _find_listed(file: Path, paths: Callable[[], Iterator[str]], where: str) -> Numbers:
    """Find the rows of the source that the file names by the ends of their paths, from a folder's
    beginning."""
    wanted = set(_read_names(file, where))
    found: dict[str, tuple[int, str]] = {}
    for row, path in enumerate(paths()):
        for end in (path, *(path[at + 1 :] for at, sign in enumerate(path) if sign == "/")):
            if end in wanted and found.setdefault(end, (row, path))[0] != row:
                raise DataError(
                    f"{where}: {file}: {readable(end)} is both {readable(path)} and "
                    f"{readable(found[end][1])}. Put the folder before the name."
                )
    missing = sorted(wanted - found.keys())
    if missing or not wanted:
        told = f"{len(missing)} of {len(wanted)} images are not in the data, the first is "
        told = f"{told}{readable(missing[0])}" if missing else "names no image"
        raise DataError(
            f"{where}: {file}: {told}; an image's path is for example {readable(next(paths()))}."
        )
    return np.array(sorted({row for row, _ in found.values()}), np.int64)


def _read_names(file: Path, where: str) -> Iterator[str]:
    """Read a table with a column of paths, or a name in each line, as the lists of SimCLR have."""
    expect_file(file, where)
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
