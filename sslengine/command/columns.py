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
from sslengine.registry import DATA_SOURCES

GROUP = "DATA.HOLD_OUT.GROUP_COLUMN"
# Keys of a split.
OF_SPLIT = ("IMAGE_COLUMN", "LABEL_COLUMN", "LABEL_COLUMNS", "LABEL_SEPARATOR")
# Those by which images are found and read.
READ_BY = (*OF_SPLIT, "IMAGE_MODE", "PIXEL_RANGE", "IMAGE_PAGE")
TABLES = (".csv", ".tsv", ".parquet")


def split_keys(image: str | None, labels: Sequence[str] | str | None) -> dict[str, Any]:
    """Return the keys of a split that the two options stand for."""
    labels = [labels] if isinstance(labels, str) else list(labels or ())
    found: dict[str, Any] = {"IMAGE_COLUMN": image} if image else {}
    if labels:
        key, value = ("LABEL_COLUMN", labels[0]) if len(labels) == 1 else ("LABEL_COLUMNS", labels)
        found[key] = value
    return found


def train_keys(given: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of a config that the options of `train` stand for."""
    asked = split_keys(given.image_column, given.label_column)
    found = {f"DATA.TRAIN.{key}": value for key, value in asked.items()}
    more = {GROUP: given.group, "DATA.TRAIN.LENGTH": given.length}
    return {**found, **{key: value for key, value in more.items() if value}}


def typed_keys(values: Sequence[str], split: str = "TRAIN") -> dict[str, Any]:
    """Return the keys of a split, of those in READ_BY, that --set says."""
    composed = compose_on(Layer("", {}), typed(values), "config")
    found = {key: composed.last_value(f"config.DATA.{split}.{key}") for key in READ_BY}
    return {key: value for key, value in found.items() if value is not None}


def run_keys(run: Path, data: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given`; for the images that a run was trained on also the keys that it has."""
    file = run / "config.yaml"
    if not file.is_file():
        return dict(given)
    config: Any = read_plain(file)[0].get("config") or {}
    place = [str(Path(data).expanduser().absolute())]
    splits = [(config.get("DATA") or {}).get(split) or {} for split in ("TRAIN", "TEST")]
    its_own = next((each for each in splits if each.get("DATA_PATHS") == place), {})
    return merge_keys(its_own, given)


def merge_keys(others: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given`, and of `others` what it does not say: labels are said as a whole."""
    labels = "LABEL_COLUMN" in given or "LABEL_COLUMNS" in given
    kept = OF_SPLIT[:1] if labels else OF_SPLIT
    return {**{key: others[key] for key in kept if others.get(key)}, **given}


def expect_effect(given: Mapping[str, Any], places: Mapping[str, str]) -> None:
    """Raise a ConfigError if no source knows a key that an option gave.

    places: what is read, and by which source.
    """
    for key in given:
        if not any(key in keys_of(DATA_SOURCES, [name]) for name in places.values()):
            option = "--image-column" if key == "IMAGE_COLUMN" else "--label-column"
            twice = " more than once" if key == "LABEL_COLUMNS" else ""
            raise ConfigError(
                f"{option}{twice}: it has no effect on {listing(places)}, read by "
                f"{listing({*places.values()})}, which knows no {key}."
            )


def suggest_labels(place: str, said: Mapping[str, Any]) -> str:
    """Name what may hold the labels of a table or a file of arrays in which none were found."""
    names = _names(Path(place))
    if len(names) < 2 or "LABEL_COLUMN" in said or "LABEL_COLUMNS" in said:
        return ""
    return (
        f"{place}: no labels are found in it. It has {listing(names)}. Name what holds the labels: "
        f"--label-column NAME."
    )


def _names(path: Path) -> Sequence[str]:
    if path.is_file() and path.suffix.lower() in TABLES:
        from sslengine.data.manifest.tables import open_table

        return list(open_table(path)[0])
    if path.is_file() and path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as held:
            return list(held)
    return ()
