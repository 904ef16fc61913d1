from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from sslengine.engines.train import train
from sslengine.errors import ConfigError
from sslengine.python.fit import fit
from tests.engines.runs import make_run
from tests.python.toys import Points, batches, net, sgd, square
from tests.train_steps.tasks import ListModel, begin, make_batch


def _asked(**options: Any) -> list[int]:
    """The epochs of five after which the set is gone through."""
    model, points = net(), Points()
    session = fit(
        model, square, batches(points), sgd(model), epochs=5, validation=points, device="cpu",
        values={"HOOKS": {"EVALUATE_LOSS": {"SETS": ["train"], **options}}},
    )  # fmt: skip
    told = [record for record in session.history.epochs if "set_loss" in record]
    assert all(record["split"] == "train" for record in told)  # test phases have a loss already
    assert all(record["set_loss"].keys() == {"train"} for record in told)
    return [record["epoch"] for record in told]


def test_when_it_looks() -> None:
    assert _asked() == [0, 1, 2, 3, 4]
    assert _asked(EVERY=2) == [1, 3, 4]
    assert _asked(EVERY=2, AT_END=False) == [1, 3]
    assert _asked(EVERY=0) == [4]
    assert _asked(EVERY=0, AT_END=False) == []


def test_a_run_that_only_tests_has_no_training_set() -> None:
    with pytest.raises(ConfigError, match="this run only tests; name TEST"):
        begin([make_batch()], ListModel(), nn.CrossEntropyLoss(), test=True,
              HOOKS__EVALUATE_LOSS={"SETS": ["TRAIN"]})  # fmt: skip


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
