"""Metrics without labels next to the scores: `config.EVALUATE.LABEL_FREE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from sslengine.evaluate.features import Rows, rows_at
from sslengine.evaluate.label_free.metric import Inputs, measure, sub_sample

NO_VIEWS = dict.fromkeys(("views", "projections", "previous"), "`sslengine rank` computes it")


def label_free(features: Rows, names: Sequence[str]) -> dict[str, Any]:
    """Of the images of TRAIN; value, number of images, and why there is no value."""
    if not names:
        return {}
    some = rows_at(features, sub_sample(len(features))).flatten(1)
    found = measure(Inputs(some, missing=NO_VIEWS), names)
    return {name: each.as_json() for name, each in found.items()}


def show_label_free(console: Console, found: Mapping[str, Mapping[str, Any]]) -> None:
    """A column for each kind of features, a line for each metric, and why there are gaps."""
    table = Table("without labels, TRAIN", box=None, pad_edge=False)
    for kind in found:
        table.add_column(kind, justify="right")
    whys: dict[str, None] = {}
    for name in next(iter(found.values()), {}):
        cells = [each[name] for each in found.values()]
        table.add_row(name, *("-" if each["why"] else f"{each['value']:.4g}" for each in cells))
        whys |= {f"{name}: {each['why']}": None for each in cells if each["why"]}
    if table.rows:
        console.print(table)
    for why in whys:
        console.print(f"  note        {why}", markup=False)
