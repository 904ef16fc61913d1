"""`--image-column`, `--label-column`, `--group`, `--length`: how images are read, as keys."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sslengine.config.plain_file import read_plain

GROUP = "DATA.HOLD_OUT.GROUP_COLUMN"
# Keys of a split.
OF_SPLIT = ("IMAGE_COLUMN", "LABEL_COLUMN", "LABEL_COLUMNS", "LABEL_SEPARATOR")


def add_columns(parser: argparse.ArgumentParser, group: str = "") -> None:
    """group: the help of --group; empty: the verb holds nothing out."""
    add = parser.add_argument
    add("--image-column", metavar="NAME", help="of a table: what holds the images, or their paths")
    labels = "what holds the labels; given twice or more: a column of 0 and 1 for each class"
    add("--label-column", action="append", metavar="NAME", help=labels)
    if group:
        add("--group", metavar="COLUMN", help=group)


def of_split(image: str | None, labels: Sequence[str] | str | None) -> dict[str, Any]:
    """The keys of a split that were given."""
    labels = [labels] if isinstance(labels, str) else list(labels or ())
    found: dict[str, Any] = {"IMAGE_COLUMN": image} if image else {}
    if labels:
        key, value = ("LABEL_COLUMN", labels[0]) if len(labels) == 1 else ("LABEL_COLUMNS", labels)
        found[key] = value
    return found


def keys(given: argparse.Namespace) -> dict[str, Any]:
    """Of a config, for training."""
    of_train = of_split(given.image_column, given.label_column)
    found = {f"DATA.TRAIN.{key}": value for key, value in of_train.items()}
    more = {GROUP: given.group, "DATA.TRAIN.LENGTH": given.length}
    return {**found, **{key: value for key, value in more.items() if value}}


def of_run(run: Path, data: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `given`; for the images that a run was trained on also those that it has."""
    file = run / "config.yaml"
    if not file.is_file():
        return dict(given)
    config: Any = read_plain(file)[0].get("config") or {}
    split = (config.get("DATA") or {}).get("TRAIN") or {}
    if split.get("DATA_PATHS") != [str(Path(data).expanduser().absolute())]:
        return dict(given)
    labels = "LABEL_COLUMN" in given or "LABEL_COLUMNS" in given
    kept = OF_SPLIT[:1] if labels else OF_SPLIT
    return {**{key: split[key] for key in kept if split.get(key)}, **given}
