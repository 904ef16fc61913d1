from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.distributed.ranks import rank
from sslengine.errors import TrainingError
from sslengine.monitor.over_ranks import Exchange, OfRank
from tests.ranks import RankPool


def _exchanged(puts: list[dict[str, tuple[str, list[float]]]], tensors: bool) -> Any:
    """The last rank puts tensors, the others numbers."""
    mine = {
        name: OfRank(reduce, [torch.tensor(v) for v in values] if tensors and rank() else values)
        for name, (reduce, values) in puts[rank()].items()
    }
    exchange = Exchange(mine)
    try:
        return exchange.values(exchange.sent.tolist())
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
    ("second", "told"),
    [
        ({}, "rank 1 did not put a"),
        ({"a": ("max", [1.0]), "b": ("max", [1.0])}, "put b, which rank 0 did not"),
        ({"a": ("sum", [1.0])}, "put a with reduce=sum, rank 0 with max"),
        ({"a": ("max", [1.0, 2.0])}, "put a 2 times, rank 0 1 times"),
        ({"a": ("max", [1.0] * 2000)}, "put a 2000 times, rank 0 1 times"),
    ],
)
def test_what_a_rank_has_put_otherwise_is_named(
    two_ranks: RankPool, second: dict[str, tuple[str, list[float]]], told: str
) -> None:
    for text in two_ranks.run(_exchanged, [{"a": ("max", [1.0])}, second], False):
        assert told in text
