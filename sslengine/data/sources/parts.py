"""Files of one dataset in a folder, as the hub ships them. Their paths say what they are of:

    train-00000-of-00002.parquet, data/train-000.tar, train/000.tar      splits
    plain_text/train-00000-of-00001.parquet                              a configuration

A folder with splits in it that names none itself is a configuration: another set of the images.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sslengine.data.sources.split_names import OF_ANY, SPLITS
from sslengine.errors import DataError, listing


def of_split(files: Sequence[Path], root: Path, split: str, where: str) -> list[Path]:
    """Those whose path names the split; all, if none names any; none, if all name another."""
    _expect_one_configuration(files, root, where)
    words = {each: _words(str(each.relative_to(root))) for each in files}
    if not any(found & OF_ANY for found in words.values()):
        return list(files)
    chosen = ([each for each in files if name in words[each]] for name in SPLITS[split])
    return next(filter(None, chosen), [])


def _words(path: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]", path.lower()))


def _expect_one_configuration(files: Sequence[Path], root: Path, where: str) -> None:
    below = [each.relative_to(root).parts for each in files]
    found = {
        first for first, *rest in below
        if rest and not _words(first) & OF_ANY and _words("/".join(rest)) & OF_ANY
    }  # fmt: skip
    if len(found) > 1:
        raise DataError(
            f"{where}: {root} has several configurations: {listing(found)}. Give the folder of one "
            f"of them, such as {root / min(found)}."
        )
