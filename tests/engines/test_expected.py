from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sslengine.distributed.ranks import rank
from sslengine.engines.evaluate import evaluate
from sslengine.engines.expected import check_results
from sslengine.engines.train import train
from sslengine.errors import ConfigError, UnexpectedResultError
from sslengine.launch.cli import main
from tests.config.recipes import resolved
from tests.engines.runs import make_run, screen
from tests.engines.test_evaluate import FROZEN, SHAPES
from tests.integration.command import write_config
from tests.ranks import RankPool

RESULTS = {"test": {"acc": {"top_1": {"0": 50.0}}, "loss": float("nan")}}


def _check(folder: Path, *expected: Any) -> str:
    run = make_run(folder, EXPECTED_RESULTS=[list(each) for each in expected])
    check_results(run, RESULTS)
    return screen(run)


@pytest.mark.parametrize(("value", "tolerance"), [(50, 0), (51.5, 1.5), (49.0, 1)])
def test_what_is_within_its_tolerance_is_printed(
    tmp_path: Path, value: float, tolerance: float
) -> None:
    text = _check(tmp_path, ("test.acc.top_1.0", value, tolerance))
    assert text == f"  as expected  test.acc.top_1.0: 50.0, expected {value} +- {tolerance}\n"


def test_nothing_is_expected_by_default(tmp_path: Path) -> None:
    assert _check(tmp_path) == ""


def test_all_that_is_not_as_expected_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnexpectedResultError) as error:
        _check(
            tmp_path,
            ("test.acc.top_1.0", 50.0, 1.0),
            ("test.acc.top_1.0", 52.0, 1.5),
            ("test.loss", 1.0, 1e9),
            ("test.acc.top_5.0", 1.0, 1.0),
        )
    lines = str(error.value).splitlines()[1:]
    assert lines == [
        "  test.acc.top_1.0 is 50.0, expected 52.0 +- 1.5.",
        "  test.loss is nan, expected 1.0 +- 1000000000.0.",
        "  there is no metric 'test.acc.top_5.0'. Did you mean 'test.acc.top_1.0'? Known: "
        "test.acc.top_1.0, test.loss.",
    ]


@pytest.mark.parametrize(
    "entry",
    [
        "test.loss",
        ["test.loss", 1.0],
        ["loss", 1.0, 1.0],
        ["test.loss", 1.0, -1.0],
        ["test.x", "a", 1],
    ],
)
def test_other_forms_are_refused_before_anything_starts(entry: Any) -> None:
    with pytest.raises(ConfigError, match=r"EXPECTED_RESULTS.0: expected \[name, value, toler"):
        resolved(EXPECTED_RESULTS=[entry])


def test_a_run_fails_after_everything_is_saved_and_again_when_it_is_asked_again(
    tmp_path: Path,
) -> None:
    for _ in range(2):  # the second time there is nothing left to train
        with pytest.raises(UnexpectedResultError, match=r"train.loss is \d.*, expected -1.0"):
            train(make_run(tmp_path, EXPECTED_RESULTS=[["train.loss", -1.0, 0.5]]))
        assert (tmp_path / "checkpoints" / "model_final_checkpoint_phase1.torch").exists()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    loss = lines[-1]["loss"]
    run = make_run(tmp_path, EXPECTED_RESULTS=[["train.loss", loss, 1e-9]])
    train(run)
    assert "as expected  train.loss" in screen(run)


def test_the_test_phase_too(tmp_path: Path) -> None:
    supervised = {
        **FROZEN,
        "DATA__TRAIN__DATA_LIMIT": 16,
        "TEST_MODEL": True,
        "MODEL__FEATURE_EVAL_SETTINGS": {},
        "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 10]}]],
        "METERS__names": ["accuracy_list_meter"],
        "METERS__accuracy_list_meter": {"num_meters": 1, "topk_values": [1]},
        "OPTIMIZER__num_epochs": 1,
    }
    name = "test.accuracy_list_meter.top_1.0"
    run = make_run(tmp_path, **supervised, EXPECTED_RESULTS=[[name, 50.0, 50.0]])
    train(run)
    assert f"as expected  {name}" in screen(run)


@pytest.mark.slow
def test_a_frozen_trunks_scores(tmp_path: Path) -> None:
    train(make_run(tmp_path, **SHAPES))
    expected = [
        ["test.trained.flatten.knn_5", 50.0, 50.0],
        ["test.untrained.flatten.linear", -1.0, 0.5],
    ]
    run = make_run(tmp_path, "evaluate", **FROZEN, EXPECTED_RESULTS=expected)
    with pytest.raises(UnexpectedResultError, match=r"test.untrained.flatten.linear is \d") as told:
        evaluate(run)
    assert "  as expected  test.trained.flatten.knn_5" in screen(run)
    assert "there is no metric" not in str(told.value)
    assert (tmp_path / "evaluation.json").exists()


def _on_ranks(folder: Path) -> str:
    # Rank 0's figures count: rank 1 has none and fails with it.
    run = make_run(folder, EXPECTED_RESULTS=[["test.acc.top_1.0", 10.0, 1.0]])
    try:
        check_results(run, RESULTS if rank() == 0 else {})
    except UnexpectedResultError as error:
        return str(error)
    return "as expected"


@pytest.mark.slow
def test_all_ranks_fail_alike(two_ranks: RankPool, tmp_path: Path) -> None:
    one, two = two_ranks.run(_on_ranks, tmp_path)
    assert one == two
    assert "is 50.0, expected 10.0 +- 1.0" in one


def test_the_command_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path, OPTIMIZER__num_epochs=1)
    monkeypatch.chdir(tmp_path)
    assert main(["config=tiny", "config.EXPECTED_RESULTS=[[train.loss,-1.0,0.5]]"]) == 1
    shown = capsys.readouterr()
    assert "NOT as expected  train.loss" in shown.out
    assert "error: config.EXPECTED_RESULTS: the run is complete and saved, but" in shown.err
    assert (tmp_path / "runs/tiny/checkpoints/checkpoint.torch").exists()
