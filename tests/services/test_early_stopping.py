from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sslengine.checkpoint import files
from sslengine.distributed.ranks import rank
from sslengine.engines.train import train
from sslengine.errors import ConfigError
from sslengine.hooks.options import EarlyStoppingOptions
from sslengine.services.early_stopping import StopEarly
from sslengine.task.phases import Phase
from sslengine.task.progress import Progress
from tests.engines.runs import PowerCut, make_run, screen
from tests.ranks import RankPool


def _task(train: bool = True) -> Any:
    phases = [Phase(0, True, 0, 0, 0, 1), Phase(1, False, 0, 0, 0, 1)]
    phase = phases[0 if train else 1]
    progress = Progress()
    return SimpleNamespace(
        train=train, phases=phases, phase=phase, progress=progress,
        stop=lambda: setattr(progress, "stopped", 1),
    )  # fmt: skip


def _until_stopped(values: list[float], **options: Any) -> int:
    """After so many phases; 0: never."""
    hook = StopEarly(EarlyStoppingOptions(**{"MONITOR": "train.loss", **options}))
    task = _task()
    hook.on_start(task)
    for count, value in enumerate(values, start=1):
        task.phase_results = {"loss": value}
        hook.on_phase_end(task)
        if task.progress.stopped:
            return count
    return 0


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
    assert _until_stopped(values, **options) == expected


def test_it_looks_at_the_phases_of_its_split_alone() -> None:
    hook = StopEarly(EarlyStoppingOptions(MONITOR="test.acc.top_1.0", MODE="max", PATIENCE=1))
    task = _task()
    task.phase_results = {"loss": 1.0}
    hook.on_phase_end(task)
    assert hook.state_dict() == {"best": math.inf, "waited": 0}
    task = _task(train=False)
    task.phase_results = {"acc": {"top_1": {0: 50.0}}}
    hook.on_phase_end(task)
    assert hook.state_dict() == {"best": -50.0, "waited": 0}
    other = StopEarly(EarlyStoppingOptions(MONITOR="test.acc.top_1.0", MODE="max", PATIENCE=1))
    other.load_state_dict(hook.state_dict())
    other.on_phase_end(task)
    assert task.progress.stopped


@pytest.mark.parametrize(
    ("monitor", "text"),
    [
        ("test.acc.top_5.0", "no metric 'test.acc.top_5.0'. Did you mean 'test.acc.top_1.0'"),
        ("test.acc.top_1", "Known: test.acc.top_1.0, test.loss."),
        ("test.los", "Did you mean 'test.loss'"),
    ],
)
def test_a_figure_that_is_not_there(monitor: str, text: str) -> None:
    task = _task(train=False)
    task.phase_results = {"loss": 1.0, "acc": {"top_1": {"0": 50.0}}}
    with pytest.raises(ConfigError, match=text):
        StopEarly(EarlyStoppingOptions(MONITOR=monitor)).on_phase_end(task)


def test_a_train_phase_that_goes_on_after_a_test_has_no_figure_yet() -> None:
    hook, task = StopEarly(EarlyStoppingOptions(MONITOR="train.loss", PATIENCE=1)), _task()
    task.phase, task.phase_results = Phase(0, True, 0, 0, 0, 1, whole=2), {"loss": math.nan}
    hook.on_phase_end(task)
    assert not task.progress.stopped


def test_a_split_without_phases() -> None:
    task = _task()
    del task.phases[1]
    with pytest.raises(ConfigError, match="test.loss: this run has no test phases"):
        StopEarly(EarlyStoppingOptions(MONITOR="test.loss")).on_start(task)


def _one_rank_has_enough(number: int) -> int:
    hook = StopEarly(EarlyStoppingOptions(MONITOR="train.loss", PATIENCE=2))
    hook.load_state_dict({"best": 0.0, "waited": rank()})
    task = _task()
    task.phase_results = {"loss": 1.0}
    hook.on_phase_end(task)
    return int(task.progress.stopped)


def test_ranks_end_together() -> None:
    with RankPool(2) as pool:
        assert pool.run(_one_rank_has_enough, 0) == [1, 1]


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


def test_it_stops_after_a_test_phase(tmp_path: Path) -> None:
    meters = {
        "name": "accuracy_list_meter",
        "accuracy_list_meter": {"num_meters": 1, "topk_values": [1]},
    }
    data = {"DATA_SOURCES": ["synthetic"], "DEFAULT_GRAY_IMG_SIZE": 8, "DATA_LIMIT": 4, "LABEL_SOURCES": ["synthetic"],
            "BATCHSIZE_PER_REPLICA": 4, "TRANSFORMS": [{"name": "ToTensor"}]}  # fmt: skip
    stop = {"MONITOR": "test.loss", "PATIENCE": 1, "MIN_DELTA": 10.0}
    changes = {
        **STOPS, "TEST_MODEL": True, "DATA__TEST": data, "METERS": meters,
        "HOOKS__EARLY_STOPPING": stop, "LOSS": {"name": "CrossEntropyLoss"},
        "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
        "DATA__TRAIN__TRANSFORMS": data["TRANSFORMS"], "DATA__TRAIN__LABEL_SOURCES": ["synthetic"],
    }  # fmt: skip
    train(make_run(tmp_path, **changes))
    path = (tmp_path / "checkpoints" / files.POINTER).resolve()
    assert path.name == "model_final_checkpoint_phase1.torch"
    state = _final(tmp_path)["classy_state_dict"]
    assert (state["progress"]["phase"], state["progress"]["iteration"]) == (3, 8)
    again = make_run(tmp_path, **changes)
    train(again)
    assert "this run is complete, 8 steps" in screen(again)


def test_a_killed_run_waits_no_longer_for_it(tmp_path: Path) -> None:
    cut = {"HOOKS__EXTRA": [{"name": "test_power_cut", "after": 10}]}
    with pytest.raises(PowerCut):
        train(make_run(tmp_path, **STOPS, **cut))
    train(make_run(tmp_path, **STOPS))
    assert _final(tmp_path)["classy_state_dict"]["progress"]["iteration"] == 16
