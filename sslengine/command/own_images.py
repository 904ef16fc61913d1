"""`sslengine judge RUN`: the run's own images, with labels and test images where it trains without.

Labels are those that its source knows. Of a run without test images a fifth is held out: of each
class, if every one has images enough.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from sslengine.command import columns
from sslengine.config.compose import overrides, typed
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.errors import DataError
from sslengine.registry import import_dotted
from sslengine.trust import closed

HELD_OUT = 0.2


def own_images(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Keys of the config, and notes."""
    values = _columns(given, "TRAIN")
    said = [*overrides(values), *typed_plugins(given.values)]
    opened = open_run(given.run, said, trusted=given.trust_config, judged=True, as_trained=True)
    data = read(opened.config, DataOptions)
    if data.TEST.DATA_SOURCES:
        values |= _columns(given, "TEST")
    with closed(opened.opened):
        build = import_dotted("sslengine.data.sources.base:build_sources")
        sources = build(data.TRAIN, "TRAIN")
    names = data.TRAIN.LABEL_SOURCES
    if not names and sources[0].num_classes > 1:
        names = data.TRAIN.DATA_SOURCES[:1]
    values |= _labels(data, names)
    if not data.TEST.DATA_SOURCES and not data.HOLD_OUT.SHARE:
        labelled = replace(data.TRAIN, LABEL_SOURCES=names)
        values |= _test_images(labelled, sources, given.group)
    if data.TRAIN.LABEL_SOURCES or sources[0].num_classes or len(data.TRAIN.DATA_PATHS) != 1:
        return values, []
    note = columns.without_labels(data.TRAIN.DATA_PATHS[0], columns.of_set(given.values))
    return values, [note] if note else []


def typed_plugins(values: Sequence[str]) -> list[str]:
    """The user trusts them by typing them, also where the run's config names them."""
    return [each for each in typed(values) if each.startswith("config.PLUGINS=")]


def _columns(given: argparse.Namespace, split: str) -> dict[str, Any]:
    """What is asked for of the run's own images."""
    asked = columns.of_split(given.image_column, given.label_column)
    said = {**columns.of_set(given.values, split), **asked}
    return {f"DATA.{split}.{key}": value for key, value in said.items()}


def _labels(data: DataOptions, names: Sequence[str]) -> dict[str, Any]:
    """names: of TRAIN's sources of labels; empty if it has none."""
    made: dict[str, Any] = {}
    for split, each in (("TRAIN", data.TRAIN), ("TEST", data.TEST)):
        if names and not data.TRAIN.LABEL_SOURCES and each.DATA_SOURCES:
            made[f"DATA.{split}.LABEL_SOURCES"] = each.DATA_SOURCES[:1]
        made[f"DATA.{split}.LABEL_TYPE"] = "standard" if names else "sample_index"
    return made


def _test_images(train: SplitOptions, sources: Sequence[Any], group: str) -> dict[str, Any]:
    """None of so few that none would be one: kNN leaves each out then."""
    made: dict[str, Any] = {"DATA.TRAIN.DATA_LIMIT": -1}
    if round(HELD_OUT * len(sources[0])):
        made["DATA.HOLD_OUT.SHARE"] = HELD_OUT
        if group:
            made[columns.GROUP] = group
        elif _has_some_of_each_class(train, sources):
            made["DATA.HOLD_OUT.STRATIFIED"] = True
    return made


def _has_some_of_each_class(train: SplitOptions, sources: Sequence[Any]) -> bool:
    """Would the share of every class be an image or more? Not where images have several."""
    read_labels = import_dotted("sslengine.data.manifest.labels:standard_labels")
    with suppress(DataError):  # reported where the images are read
        found = read_labels(train, "TRAIN", sources, needed=True)
        if found and found[0].column.ndim == 1:
            smallest = np.unique(found[0].column, return_counts=True)[1].min()
            return bool(round(HELD_OUT * smallest))
    return False
