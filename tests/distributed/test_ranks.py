from __future__ import annotations

import pytest
import torch

from sslengine.distributed import ranks
from sslengine.distributed.ranks import pick_device
from sslengine.errors import LaunchError
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


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    for name in ("gpu", "mps"):
        with pytest.raises(LaunchError, match=f"config.MACHINE.DEVICE is {name}"):
            pick_device(name)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert pick_device("auto") == pick_device("mps") == torch.device("mps")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert pick_device("auto") == torch.device("cpu")  # Apple's GPU is for one process


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(LaunchError, match="has 2 GPUs.*NUM_PROC_PER_NODE=2"):
        pick_device("gpu")
