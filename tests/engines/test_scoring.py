"""Scores, the table that shows them, and results that a config expects."""

from __future__ import annotations

import io
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from sslengine.distributed.ranks import rank
from sslengine.engines.report import show_all
from sslengine.engines.run import check_results
from sslengine.engines.scoring import Score, chance
from sslengine.engines.train import train
from sslengine.errors import ConfigError, UnexpectedResultError
from sslengine.launch.cli import main
from tests.config.recipes import resolved
from tests.engines.runs import make_run, screen
from tests.integration.command import write_config
from tests.ranks import RankPool


def test_of_one_class_each_the_most_frequent_of_train() -> None:
    labels, wanted = torch.tensor([0, 1, 1, 2]), torch.tensor([1, 1, 0, 2, 2])
    assert chance(labels, wanted) == pytest.approx(40.0)


@pytest.mark.parametrize(("images", "shown"), [(8, 4), (9, 2), (5, 1)])
def test_of_several_classes_all_orders_are_as_likely(images: int, shown: int) -> None:
    """VOC's definition over all places that the class's images can have in the order."""
    found = []
    for places in combinations(range(1, images + 1), shown):
        precisions = [number / place for number, place in enumerate(places, 1)]
        found.append(np.mean([max(precisions[number:]) for number in range(shown)]))
    wanted = (torch.arange(images) < shown).long()[:, None].repeat(1, 40)
    wanted = torch.cat([wanted, -torch.ones(3, 40).long()])  # not known: not in the order
    assert chance(wanted, wanted) == pytest.approx(100 * np.mean(found), abs=1.5)
    assert 100 * np.mean(found) > 100 * shown / images + 5


# ---- What a judge run prints last: one table of 80 columns.


NOTE = "linear: all 2000 answers are the same"


def _shown(trained: float, untrained: float = 30.6, metric: str = "accuracy") -> list[str]:
    values = {"trained": trained, "untrained": untrained, "raw pixels": 28.0}
    scores = [
        Score(
            name, "16x16" if name == "raw pixels" else "flatten", {20: value}, 50.0,
            protocols={"dense": {"metrics": {"linear mIoU": 9.0}, "notes": [NOTE] * (value < 30)}},
            intervals={"knn_20": [value - 1.5, value + 2.0], "linear": [48.0, 52.0]},
        )
        for name, value in values.items()
    ]  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    show_all(console, scores, metric, 10.0, ["linear probe: penalty 10 is an end of those tried"])
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def _text(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def test_the_table_is_last_and_fits_80_columns() -> None:
    lines = _shown(82.1)
    assert max(map(len, lines)) <= 80
    (head,) = [number for number, line in enumerate(lines) if line.startswith("features")]
    assert [line.split() for line in lines[head:]] == [
        ["features", "layer", "kNN", "(k=20)", "linear"],
        ["trained", "flatten", "82.1", "±2.0", "%", "50.0", "±2.0", "%"],
        ["untrained", "flatten", "30.6", "±2.0", "%", "50.0", "±2.0", "%"],
        ["raw", "pixels", "16x16", "28.0", "±2.0", "%", "50.0", "±2.0", "%"],
        ["chance", "largest", "class", "10.0", "%", "10.0", "%"],
    ]
    before = _text(lines[:head])
    assert f"note dense: raw pixels, 16x16: {NOTE}" in before
    assert "note linear probe: penalty 10" in before


# ---- expected


RESULTS = {"test": {"acc": {"top_1": {"0": 50.0}}, "loss": float("nan")}}


def _check(folder: Path, *expected: Any) -> str:
    run = make_run(folder, EXPECTED_RESULTS=[list(each) for each in expected])
    check_results(run, RESULTS)
    return screen(run)


def test_all_that_is_not_as_expected_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnexpectedResultError) as error:
        _check(
            tmp_path, ("test.acc.top_1.0", 50.0, 1.0), ("test.acc.top_1.0", 52.0, 1.5),
            ("test.loss", 1.0, 1e9), ("test.acc.top_5.0", 1.0, 1.0),
        )  # fmt: skip
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
        "test.loss", ["test.loss", 1.0], ["loss", 1.0, 1.0], ["test.loss", 1.0, -1.0],
        ["test.x", "a", 1],
    ],
)  # fmt: skip
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
