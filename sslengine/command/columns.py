"""`--image-column`, `--label-column`, `--group`, `--length`: how images are read, as keys."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslengine.config.components import keys_of
from sslengine.config.compose import compose_on, typed
from sslengine.config.files import Layer
from sslengine.config.yaml_text import read_plain
from sslengine.errors import ConfigError, listing
from sslengine.registry import DATA_SOURCES, import_dotted

GROUP = "DATA.HOLD_OUT.GROUP_COLUMN"
# Keys of a split.
OF_SPLIT = ("IMAGE_COLUMN", "LABEL_COLUMN", "LABEL_COLUMNS", "LABEL_SEPARATOR")
# Those by which images are found and read.
READ_BY = (*OF_SPLIT, "IMAGE_MODE", "PIXEL_RANGE", "IMAGE_PAGE")
TABLES = (".csv", ".tsv", ".parquet")


def add_columns(parser: argparse._ActionsContainer, group: str = "") -> None:
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


def of_set(values: Sequence[str], split: str = "TRAIN") -> dict[str, Any]:
    """What --set says of READ_BY."""
    composed = compose_on(Layer("", {}), typed(values), "config")
    found = {key: composed.last_value(f"config.DATA.{split}.{key}") for key in READ_BY}
    return {key: value for key, value in found.items() if value is not None}


def of_run(run: Path, data: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `given`; for the images that a run was trained on also those that it has."""
    file = run / "config.yaml"
    if not file.is_file():
        return dict(given)
    config: Any = read_plain(file)[0].get("config") or {}
    place = [str(Path(data).expanduser().absolute())]
    splits = [(config.get("DATA") or {}).get(split) or {} for split in ("TRAIN", "TEST")]
    its_own = next((each for each in splits if each.get("DATA_PATHS") == place), {})
    return over(its_own, given)


def over(others: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `given`, and of others what they do not say: labels are said as a whole."""
    labels = "LABEL_COLUMN" in given or "LABEL_COLUMNS" in given
    kept = OF_SPLIT[:1] if labels else OF_SPLIT
    return {**{key: others[key] for key in kept if others.get(key)}, **given}


def expect_effect(given: Mapping[str, Any], places: Mapping[str, str]) -> None:
    """given: by the options. places: what is read, and by which source."""
    for key in given:
        if not any(key in keys_of(DATA_SOURCES, [name]) for name in places.values()):
            option = "--image-column" if key == "IMAGE_COLUMN" else "--label-column"
            twice = " more than once" if key == "LABEL_COLUMNS" else ""
            raise ConfigError(
                f"{option}{twice}: it has no effect on {listing(places)}, read by "
                f"{listing({*places.values()})}, which knows no {key}."
            )


def without_labels(place: str, said: Mapping[str, Any]) -> str:
    """Of a table, or a file of arrays, in which no label was found: what could hold them."""
    names = _names(Path(place))
    if len(names) < 2 or "LABEL_COLUMN" in said or "LABEL_COLUMNS" in said:
        return ""
    return (
        f"{place}: no labels are found in it. It has {listing(names)}. Name what holds the labels: "
        f"--label-column NAME."
    )


def _names(path: Path) -> Sequence[str]:
    if path.is_file() and path.suffix.lower() in TABLES:
        return list(import_dotted("sslengine.data.sources.tables:open_table")(path)[0])
    if path.is_file() and path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as held:
            return list(held)
    return ()
