"""Protocols whose work ranks share: the same results as on one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sslengine.evaluation.outcome import Outcome
from sslengine.evaluation.retrieval.labelled import retrieval, view_retrieval
from tests.ranks import RankPool


def noisy() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (150,), generator=draw)
    centres = torch.randn(5, 12, generator=draw, dtype=torch.float64)
    noise = torch.randn(150, 12, generator=draw, dtype=torch.float64)
    return centres[labels] + 1.5 * noise, labels


def _retrieved(queries: int, over_ranks: bool) -> list[Outcome]:
    features, labels = noisy()
    views = features.view(75, 2, 12)[:queries]
    return [
        retrieval(features, labels, queries=queries, over_ranks=over_ranks),
        view_retrieval(views, over_ranks=over_ranks),
    ]


@pytest.mark.parametrize("queries", [1, 75])
def test_two_ranks_share_the_queries(two_ranks: RankPool, queries: int) -> None:
    one = _retrieved(queries, over_ranks=False)
    for each in two_ranks.run(_retrieved, queries, True):
        for found, expected in zip(each, one, strict=True):
            assert dict(found.metrics) == pytest.approx(dict(expected.metrics), rel=1e-12)
            assert found.details == expected.details
