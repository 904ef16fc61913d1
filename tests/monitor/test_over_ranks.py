from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.distributed.ranks import rank
from sslengine.errors import TrainingError
from sslengine.monitor.over_ranks import Column, join, read_columns
from tests.ranks import RankPool


def _exchanged(puts: list[dict[str, tuple[str, list[float]]]], tensors: bool) -> Any:
    """The last rank puts tensors, the others numbers."""
    mine = {
        name: Column([torch.tensor(v) for v in values] if tensors and rank() else values, reduce)
        for name, (reduce, values) in puts[rank()].items()
    }
    try:
        return read_columns(mine)
    except TrainingError as error:
        return str(error)


@pytest.mark.parametrize("count", [1, 3, 900])
def test_value_by_value(two_ranks: RankPool, count: int) -> None:
    """By numpy; 900 values of each kind do not fit into what is sent first."""
    random = np.random.default_rng(0)
    tables = {reduce: random.random((2, count)) for reduce in ("mean", "max", "sum")}
    puts = [
        {reduce: (reduce, table[n].tolist()) for reduce, table in tables.items()} for n in (0, 1)
    ]
    for found in two_ranks.run(_exchanged, puts, False):
        for reduce, table in tables.items():
            expected = getattr(np, reduce)(table, axis=0)
            np.testing.assert_allclose(found[reduce], expected, rtol=1e-15)


def test_one_rank_may_put_tensors_where_another_puts_numbers(two_ranks: RankPool) -> None:
    puts = [
        {"b": ("sum", [1.0, 2.0]), "a": ("max", [3.0])},
        {"a": ("max", [5.0]), "b": ("sum", [4.0, 8.0])},
    ]
    assert two_ranks.run(_exchanged, puts, True) == [{"a": [5.0], "b": [5.0, 10.0]}] * 2


@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
def test_one_ranks_nan_is_everyones(two_ranks: RankPool, reduce: str) -> None:
    puts = [{"a": (reduce, [1.0])}, {"a": (reduce, [math.nan])}]
    for found in two_ranks.run(_exchanged, puts, False):
        assert math.isnan(found["a"][0])


@pytest.mark.parametrize(
    "second",
    [
        {},
        {"a": ("max", [1.0]), "b": ("max", [1.0])},
        {"a": ("sum", [1.0])},
        {"a": ("max", [1.0, 2.0])},
        {"a": ("max", [1.0] * 2000)},
    ],
)
def test_all_ranks_are_told_of_what_one_has_put_otherwise(
    two_ranks: RankPool, second: dict[str, tuple[str, list[float]]]
) -> None:
    for text in two_ranks.run(_exchanged, [{"a": ("max", [1.0])}, second], False):
        assert "ranks have put different metrics" in text


def test_numbers_of_all_kinds_in_one_row() -> None:
    large = 2**24 + 1  # float32 does not have it
    row = join([1.0, torch.tensor(large), torch.tensor([[3.0, 4.0]])])
    assert (row.dtype, row.tolist()) == (torch.float64, [1.0, large, 3.0, 4.0])
    assert join([]).tolist() == []
