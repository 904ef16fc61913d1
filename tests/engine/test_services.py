from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor, nn

from sslengine.checkpoint import files
from sslengine.distributed.ranks import rank
from sslengine.engine import loop
from sslengine.engine.services import Services, StopEarly, services_of
from sslengine.engines.train import train
from sslengine.errors import ConfigError
from tests.config.recipes import resolved
from tests.engine.runs import make_task
from tests.engine.tasks import ListModel, at, make, make_batch
from tests.engines.runs import PowerCut, make_run, screen
from tests.ranks import RankPool


class Losses(nn.Module):
    """As they are given, one for each phase of one step."""

    def __init__(self, values: Iterable[float]) -> None:
        super().__init__()
        self.values = iter(values)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return output.sum() * 0 + next(self.values)


def _stopped_after(train: list[float], *hooks: Any, **options: Any) -> int:
    """Train phases made; 0: all of them."""
    options = {"MONITOR": "train.loss", **options}
    task = make(
        [make_batch()], ListModel(), Losses(train), *hooks,
        OPTIMIZER__num_epochs=len(train), HOOKS__EARLY_STOPPING=options, HOOKS__CHECK_NAN=False,
    )  # fmt: skip
    loop.run(task)
    return int(task.iteration if task.progress.stopped else 0)


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([5, 4, 3, 2, 1], {"PATIENCE": 1}, 0),
        ([5, 4, 4, 3], {"PATIENCE": 1}, 3),
        ([5, 4, 6, 3, 7, 8, 9], {"PATIENCE": 2}, 6),
        ([5, 4, 6, 3, 7, 8, 9], {"PATIENCE": 3}, 7),
        ([5, 4.8, 4.6, 4.4], {"PATIENCE": 2, "MIN_DELTA": 0.5}, 3),
        ([5, 4.8, 4.4, 4.2], {"PATIENCE": 2, "MIN_DELTA": 0.5}, 0),
        ([1, 2, 3, 2], {"MODE": "max", "PATIENCE": 1}, 4),
        ([1, math.nan], {"PATIENCE": 1}, 2),
    ],
)
def test_when_it_stops(values: list[float], options: dict[str, Any], expected: int) -> None:
    assert _stopped_after(values, **options) == expected


def test_it_looks_at_the_phases_of_its_split_alone() -> None:
    """Train and test phases in turns: train losses rise, test losses fall until the last."""
    task = make(
        [make_batch()], ListModel(), Losses([1, 9, 2, 8, 3, 8, 4, 7]), validation=[make_batch()],
        OPTIMIZER__num_epochs=4, HOOKS__EARLY_STOPPING={"MONITOR": "test.loss", "PATIENCE": 1},
    )  # fmt: skip
    loop.run(task)
    assert (task.iteration, task.progress.stopped) == (3, 1)


def test_a_metric_that_is_not_there() -> None:
    mine = {"mine": {"top_1": {"0": 50.0}}}
    end = at("on_phase_end", lambda task: task.phase_results.update(mine))
    with pytest.raises(ConfigError, match="MONITOR: .*'train.mine.top_5.0'"):
        _stopped_after([1.0, 1.0], end, MONITOR="train.mine.top_5.0")


def test_a_train_phase_that_a_test_interrupts_has_no_metric_yet() -> None:
    """Tests after steps 2 and 4: only then is the phase complete, with the loss since the first."""
    task = make(
        [make_batch()] * 4, ListModel(), Losses([1, 1, 5, 8, 10, 5]), validation=[make_batch()],
        OPTIMIZER__num_epochs=1, TEST_EVERY_NUM_ITERATIONS=2,
        HOOKS__EARLY_STOPPING={"MONITOR": "train.loss", "PATIENCE": 1},
    )  # fmt: skip
    loop.run(task)
    (hook,) = (each for each in task.services if isinstance(each, StopEarly))
    assert hook.state_dict() == {"best": 9.0, "waited": 0}


def _one_rank_has_enough(number: int) -> int:
    task = make(
        [make_batch()], ListModel(), Losses([1.0, 1.0]), OPTIMIZER__num_epochs=2,
        HOOKS__EARLY_STOPPING={"MONITOR": "train.loss", "PATIENCE": 2},
        DISTRIBUTED__NUM_PROC_PER_NODE=2,
    )  # fmt: skip
    (hook,) = (each for each in task.services if isinstance(each, StopEarly))
    hook.load_state_dict({"best": 0.0, "waited": rank()})
    loop.run(task)
    return int(task.iteration)


def test_ranks_end_together(two_ranks: RankPool) -> None:
    assert two_ranks.run(_one_rank_has_enough, 0) == [1, 1]


# No loss is better than the first by 10.
STOPS: dict[str, Any] = {
    "OPTIMIZER__num_epochs": 9,
    "HOOKS__EARLY_STOPPING": {"MONITOR": "train.loss", "PATIENCE": 3, "MIN_DELTA": 10.0},
}


def _final(folder: Path) -> dict[str, Any]:
    found = files.newest(folder / "checkpoints")
    assert found is not None
    return found[1]


def test_the_run_is_complete_and_stays_so(tmp_path: Path) -> None:
    train(make_run(tmp_path, **STOPS))
    path = (tmp_path / "checkpoints" / files.POINTER).resolve()
    assert path.name == "model_final_checkpoint_phase3.torch"
    progress = _final(tmp_path)["classy_state_dict"]["progress"]
    assert (progress["iteration"], progress["stopped"]) == (16, 1)
    again = make_run(tmp_path, **STOPS)
    train(again)
    assert "this run is complete, 16 steps" in screen(again)


def test_a_killed_run_waits_no_longer_for_it(tmp_path: Path) -> None:
    cut = {"HOOKS__EXTRA": [{"name": "test_power_cut", "after": 10}]}
    with pytest.raises(PowerCut):
        train(make_run(tmp_path, **STOPS, **cut))
    train(make_run(tmp_path, **STOPS))
    assert _final(tmp_path)["classy_state_dict"]["progress"]["iteration"] == 16


# ---- their order


def _names(folder: Path | None, **changes: Any) -> list[str]:
    chosen = services_of(resolved(**changes).config, folder, readers=(SimpleNamespace(),))
    return [type(each).__name__ for each in chosen]


def test_the_order(tmp_path: Path) -> None:
    early = {"HOOKS__EARLY_STOPPING__MONITOR": "train.loss"}
    assert _names(tmp_path, **early) == [
        "LogMetrics", "SimpleNamespace", "StopEarly", "SaveCheckpoints", "StopOnSignals",
    ]  # fmt: skip
    assert _names(None) == ["LogMetrics", "SimpleNamespace"]  # without a folder nothing is saved
    assert list(Services()) == []


def test_they_are_called_after_all_hooks(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    for event, calls in task.state.calls.items():
        callers = [call.__self__ for call in calls]
        of_services = [each for each in task.services if each in callers]
        assert callers[len(callers) - len(of_services) :] == of_services, event
        assert not set(map(id, of_services)) & set(map(id, task.hooks))
