"""What a step launches, beside the same method written by hand around the same model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.operations import Case
from tests.tail import slow_but
from tools.perf_measurement import by_hand

# (the engine's, by hand), with the torch that constraints/ pins.
GOLDEN = {
    "simclr": (by_hand.simclr, 135, 137),
    "moco": (by_hand.moco, 202, 197),
    "dino": (by_hand.dino, 384, 379),
    "mae": (by_hand.mae, 248, 243),
}


@pytest.mark.parametrize("name", slow_but(["simclr", "dino"], GOLDEN))
def test_a_step_launches_what_one_by_hand_does(name: str, tmp_path: Path) -> None:
    written, ours, theirs = GOLDEN[name]
    case = Case(name, tmp_path)
    expected, _ = case.loss_by_hand(*written(case))
    made = case.of_engine()
    torch.testing.assert_close(case.task.last_batch.loss, expected, rtol=1e-4, atol=1e-5)
    _, bare = case.loss_by_hand(*written(case))
    difference = {"more": made - bare, "fewer": bare - made}
    assert made.total() <= 1.03 * bare.total(), difference
    if torch.__version__.startswith("2.14."):
        assert (made.total(), bare.total()) == (ours, theirs)
