from __future__ import annotations

import math

import pytest

from sslengine.errors import TrainingError
from sslengine.monitor.rank_figures import OfRank, over_ranks


@pytest.mark.parametrize(
    ("reduce", "expected"), [("mean", [2.0, 3.5]), ("max", [3.0, 5.0]), ("sum", [4.0, 7.0])]
)
def test_value_by_value(reduce: str, expected: list[float]) -> None:
    ranks = [{"a": OfRank(reduce, [1.0, 5.0])}, {"a": OfRank(reduce, [3.0, 2.0])}]
    assert over_ranks(ranks) == {"a": expected}


@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
def test_one_ranks_nan_is_everyones(reduce: str) -> None:
    ranks = [{"a": OfRank(reduce, [1.0])}, {"a": OfRank(reduce, [math.nan])}]
    assert math.isnan(over_ranks(ranks)["a"][0])


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({}, "rank 1 did not put a"),
        ({"a": OfRank("max", [1.0]), "b": OfRank("max", [1.0])}, "put b, which rank 0 did not"),
        ({"a": OfRank("sum", [1.0])}, "put a with reduce=sum, rank 0 with max"),
        ({"a": OfRank("max", [1.0, 2.0])}, "put a 2 times, rank 0 1 times"),
    ],
)
def test_what_a_rank_has_put_otherwise_is_named(second: dict[str, OfRank], told: str) -> None:
    with pytest.raises(TrainingError, match=told):
        over_ranks([{"a": OfRank("max", [1.0])}, second])
