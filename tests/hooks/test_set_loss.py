from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sslengine.engines.train import train
from sslengine.errors import ConfigError
from sslengine.hooks.options import EvaluateLossOptions
from sslengine.hooks.set_loss import EvaluateLoss
from sslengine.task.phases import Phase
from tests.engines.runs import make_run

PHASES = [Phase(index, True, index, index, 0, 1) for index in range(5)]


def _asked(**options: Any) -> list[int]:
    """The train phases after which the sets are gone through."""
    hook = EvaluateLoss(EvaluateLossOptions(SETS=["train"], **options))
    asked = []
    for phase in PHASES:
        task: Any = SimpleNamespace(
            train=True, phases=PHASES, phase=phase, phase_results={},
            set_loss=lambda name: {"loss": 2.0, "part": 1.0},
        )  # fmt: skip
        hook.on_phase_end(task)
        if task.phase_results:
            assert task.phase_results == {"set_loss": {"train": 2.0}}
            asked.append(phase.train_index)
    return asked


def test_when_it_looks() -> None:
    assert _asked() == [0, 1, 2, 3, 4]
    assert _asked(EVERY=2) == [1, 3, 4]
    assert _asked(EVERY=2, AT_END=False) == [1, 3]
    assert _asked(EVERY=0) == [4]
    assert _asked(EVERY=0, AT_END=False) == []


def test_test_phases_have_a_loss_already() -> None:
    task: Any = SimpleNamespace(train=False, phase_results={})
    EvaluateLoss(EvaluateLossOptions(SETS=["TEST"])).on_phase_end(task)
    assert task.phase_results == {}


def test_a_run_that_only_tests_has_no_training_set() -> None:
    task: Any = SimpleNamespace(train_feed=None)
    with pytest.raises(ConfigError, match="this run only tests; name TEST"):
        EvaluateLoss(EvaluateLossOptions(SETS=["TRAIN"])).on_start(task)


def test_it_is_in_the_metrics_and_may_end_the_run(tmp_path: Path) -> None:
    hooks = {
        "EVALUATE_LOSS": {"SETS": ["TRAIN"]},
        "EARLY_STOPPING": {"MONITOR": "train.set_loss.train", "MIN_DELTA": 99.0, "PATIENCE": 1},
    }
    train(make_run(tmp_path, HOOKS=hooks, OPTIMIZER__num_epochs=5))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    phases = [line for line in lines if line["kind"] == "phase"]
    assert len(phases) == 2
    assert all(line["set_loss"]["train"] > 0 for line in phases)
