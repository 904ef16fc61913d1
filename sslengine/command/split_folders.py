"""A folder of splits, `train` beside `val`: which of them is read.

Many sets are laid out so. Read as one folder, their splits would be its classes.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from sslengine.command.folder_kind import holds_images
from sslengine.data.sources.folder_scan import is_hidden
from sslengine.data.sources.split_names import OF_ANY, SPLITS
from sslengine.errors import DataError, listing, readable

log = logging.getLogger("sslengine")

_YEAR = re.compile(r"[-_]?\d+$")  # train2017


def folder_of_split(path: Path, split: str) -> Path:
    """The folder of the split in `path`; `path` itself if its folders are not splits alone."""
    folders = sorted(each for each in path.iterdir() if each.is_dir() and not is_hidden(each.name))
    splits = {each: _name(each) for each in folders if _name(each) in OF_ANY}
    if not {*splits.values()} & {*SPLITS["TRAIN"]}:
        return path
    if any(map(holds_images, (each for each in folders if each not in splits))):
        return path  # the class "train" among others
    chosen = ([each for each, name in splits.items() if name == of] for of in SPLITS[split])
    found = next(filter(None, chosen), [])
    there = listing([each.name for each in splits])
    if len(found) != 1:
        raise DataError(
            f"{path}: it holds splits of a set: {there}. Expected one for {split} "
            f"({', '.join(SPLITS[split])}); there {f'are {len(found)}' if found else 'is none'}. "
            f"Give the path of one."
        )
    if len(splits) > 1:
        log.warning(
            "%s: its folders %s are splits of a set; %s is read. For all images give a list of "
            "their files.",
            readable(path),
            there,
            found[0].name,
        )
    return found[0]


def _name(folder: Path) -> str:
    return _YEAR.sub("", folder.name.lower())
