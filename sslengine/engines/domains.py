"""`domains` of EVALUATE.PROTOCOLS: each domain left out, by a column of the images' table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sslengine.engines.judged_images import Found, Judged
from sslengine.engines.stored import StoredSplit
from sslengine.errors import DataError
from sslengine.evaluation.domains import leave_one_domain_out

WHERE = "config.EVALUATE.DOMAIN_COLUMN"


def of_domains(judged: Judged) -> Found:
    """Without labelled test images on those of TRAIN. Collective."""
    if not judged.domain_column:
        raise DataError(f"{WHERE} names no column of the images' table.")
    if all(each.labels is None for each in judged.sets):
        raise DataError("the images have no labels.")
    columns = {split: _column(each, judged.domain_column) for split, each in judged.splits.items()}
    found: Found = {}
    for each in judged.sets:
        assert each.labels is not None
        train = each.train, each.labels, _of(columns["TRAIN"], each.numbers)
        test = train
        if each.test is not None and each.wanted is not None:
            test = each.test, each.wanted, _of(columns["TEST"], each.tested)
        found[each.features, each.layer] = leave_one_domain_out(
            *train, *test, judged.probe, device=judged.run.device, over_ranks=True
        )
    return found


def _column(split: StoredSplit, name: str) -> list[Any]:
    """Of the images of the dataset."""
    values = split.dataset.sources[0].column(name, WHERE)
    return [values[int(row)] for row in split.dataset.rows]


def _of(column: Sequence[Any], numbers: Tensor | None) -> list[Any]:
    assert numbers is not None
    return [column[number] for number in numbers.tolist()]
