from __future__ import annotations

import pytest

from sslengine.distributed import ranks
from tests.ranks import RankPool


def _who() -> tuple[int, int, int, bool, bool]:
    return (
        ranks.rank(),
        ranks.world_size(),
        ranks.local_rank(),
        ranks.is_primary(),
        ranks.initialized(),
    )


def test_each_rank_knows_itself(two_ranks: RankPool) -> None:
    assert two_ranks.run(_who) == [(0, 2, 0, True, True), (1, 2, 1, False, True)]


def test_a_single_process_is_rank_0_of_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert _who() == (0, 1, 0, True, False)
