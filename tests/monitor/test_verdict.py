"""Each rule of the verdict is met by a run that is so; and differences are paired."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.checkpoint.lock import owned
from sslengine.command.front import main
from sslengine.errors import Preempted, TrainingError
from sslengine.evaluate.pairs import compare_pairs
from sslengine.monitor.history import read_lines
from sslengine.monitor.run_facts import (
    COMPLETE,
    FAILED,
    RUNNING,
    STOPPED,
    Facts,
    Status,
    read_facts,
    read_judgements,
    read_status,
)
from sslengine.monitor.run_record import recorded
from sslengine.monitor.verdict import judge_run
from tests.command.photos import write_photos

TYPED = "sslengine train '--api_key=***'"
CONFIG: dict[str, Any] = {
    "LOSS": {"name": "any_loss", "any_loss": {}},
    "OPTIMIZER": {"num_epochs": 4, "param_schedulers": {"lr": {"name": "constant", "value": 0.3}}},
    "DATA": {"TRAIN": {"BATCHSIZE_PER_REPLICA": 8}},
    "DISTRIBUTED": {"NUM_NODES": 1, "NUM_PROC_PER_NODE": 1},
    "MACHINE": {"PRECISION": "fp32"},
}
TINY = {
    "DATA.NUM_DATALOADER_WORKERS": 0, "DATA.TRAIN.BATCHSIZE_PER_REPLICA": 16,
    "DATA.TRAIN.DATA_LIMIT": 64, "OPTIMIZER.num_epochs": 2, "LOG_FREQUENCY": 1,
    "MACHINE.PRECISION": "fp32",
}  # fmt: skip


def train(folder: Path, **values: Any) -> int:
    given = {**TINY, **{key.replace("__", "."): value for key, value in values.items()}}
    keys = [f"config.{key}={value}" for key, value in given.items()]
    return main(["config=quickstart/simclr", *keys, f"config.CHECKPOINT.DIR={folder}"])


def steps(losses: list[float], **more: Any) -> list[dict[str, Any]]:
    return [{"kind": "step", "split": "train", "iteration": number, "epoch": 0, "loss": loss, **more}
            for number, loss in enumerate(losses, 1)]  # fmt: skip


def evaluation(
    trained: float, untrained: float, pixels: float, images: int = 500
) -> dict[str, Any]:
    """A report of `judge` whose answers differ on no more images than they must."""

    def score(name: str, value: float) -> dict[str, Any]:
        own, other = (np.arange(images) < images * each / 100 for each in (trained, value))
        return {
            "features": name, "layer": "flatten", "knn": {"20": value}, "linear": None,
            "intervals": {"knn_20": [value - 3, value + 3]}, "about": {"images": {"test": images}},
            "gains": {} if name == "trained" else {"knn_20": [*compare_pairs(own, other)]},
        }  # fmt: skip

    named = {"trained": trained, "untrained": untrained, "raw pixels": pixels}
    return {"metric": "accuracy", "scores": [score(*each) for each in named.items()]}


def facts(**values: Any) -> Facts:
    return Facts(Path("run"), **{"config": CONFIG, **values})


# ---- rules


@pytest.mark.parametrize(
    ("rule", "values", "parts"),
    [
        ("diverged", {"rows": steps([1.0] * 30 + [40.0] * 10)}, ["1", "40"]),
        ("not judged", {}, ["sslengine judge run"]),
        ("learned nothing", {"evaluation": evaluation(30.2, 30.0, 28.0)}, ["30.2", "30.0"]),
        ("not above pixels", {"evaluation": evaluation(53.8, 30.0, 76.2)}, ["53.8", "76.2"]),
        ("learned", {"evaluation": evaluation(82.8, 30.6, 28.0)}, ["82.8", "30.6", "28.0"]),
    ],
)  # fmt: skip
def test_a_complete_run(rule: str, values: dict[str, Any], parts: list[str]) -> None:
    found = judge_run(facts(**values))
    assert found.rule == rule
    assert all(part in found.text for part in parts)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"copies": 5}, "5 of 500"),
        ({"below_pixels": ["bag", "coat"]}, "bag, coat"),
        ({"about": {"constant": ["linear"]}}, "same class"),
        ({"about": {"knn_on": "TRAIN, each image by the others"}}, "trained on"),
        ({"about": {"images": {"test": 40}}}, "40 test images"),
    ],
)
def test_caveats(changes: dict[str, Any], part: str) -> None:
    report = evaluation(82.8, 30.6, 28.0)
    for score in report["scores"]:
        score["about"] |= changes.get("about", {})
    found = judge_run(facts(evaluation={**report, **changes}))
    assert found.rule == "learned"
    (caveat,) = found.caveats
    assert part in caveat


def test_starved_of_data() -> None:
    rows = steps([5.0] * 41, images_per_s=8.0, data_seconds=0.8)
    ends = [{"kind": "phase", "split": "train", "iteration": 41, "epoch": 0}]
    found = judge_run(facts(rows=[*rows, *ends], evaluation=evaluation(82.8, 30.6, 28.0)))
    assert found.rule == "learned"
    assert "80%" in found.caveats[0]


def test_a_report_without_answers_is_compared_by_intervals() -> None:
    report = evaluation(31.0, 30.0, 28.0)
    for score in report["scores"]:
        score["gains"] = {}
    assert judge_run(facts(evaluation=report)).rule == "learned nothing"


def test_a_run_is_improving_while_the_loss_falls() -> None:
    scores = evaluation(82.8, 30.6, 28.0)
    for slope, told in ((0.05, True), (0.0, False)):
        rows = steps([5.0 - slope * number for number in range(60)])
        assert ("longer" in judge_run(facts(rows=rows, evaluation=scores)).detail) == told


# ---- through the command


def test_a_run_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rate = "{name: constant, value: 1e30}"
    assert train(tmp_path / "run", OPTIMIZER__param_schedulers__lr=rate) == 1
    found = judge_run(read_facts(tmp_path / "run"))
    assert (found.rule, found.status) == ("failed", FAILED)
    step = int(found.sentence.partition("step ")[2].partition(":")[0])
    assert f"iteration {step} " in found.sentence
    assert found.command == f"sslengine replay {tmp_path / 'run'}"
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert found.sentence in " ".join(capsys.readouterr().out.split())


def test_a_rate_that_makes_projections_equal(tmp_path: Path) -> None:
    rate = "{name: constant, value: 50}"
    values = {"OPTIMIZER__num_epochs": 1, "OPTIMIZER__param_schedulers__lr": rate}
    assert train(tmp_path / "run", **values) == 0
    found = judge_run(read_facts(tmp_path / "run"))
    assert found.rule == "collapsing"
    assert "equal projections" in found.sentence
    assert "config.OPTIMIZER.param_schedulers.lr" in found.detail


def test_a_run_that_is_stopped_killed_or_running(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run) == 0
    whole = read_facts(run)
    assert whole.status == replace(whole.status, status=COMPLETE, step=8, steps=8)
    assert judge_run(whole).rule == "not judged"

    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, "status": RUNNING}))
    with owned(run):
        assert judge_run(read_facts(run)).rule == "running"
    killed = judge_run(read_facts(run))
    assert killed.rule == "stopped"
    assert "killed" in killed.detail
    assert killed.command


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Preempted("stopped by SIGTERM after step 3; saved in there"), STOPPED),
        (KeyboardInterrupt(), STOPPED),
        (TrainingError("no good\nmore of it"), FAILED),
        (None, COMPLETE),
    ],
)
def test_the_status_of_a_run_that_ends(
    error: BaseException | None,
    status: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/sslengine", "train", "--api_key=x"])
    phases = [SimpleNamespace(own_steps=7, train=True)]
    task = SimpleNamespace(iteration=3, phases=phases, device=torch.device("cpu"))
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with expected, recorded(task, tmp_path, {"time": "now"}):
        if error is not None:
            raise error
    found = read_status(tmp_path)
    assert (found.status, found.step, found.steps) == (status, 3, 7)
    assert "\n" not in found.cause
    (start,) = read_lines(tmp_path / "starts.jsonl")
    assert (start["command"], start["step"], start["ranks"]) == (TYPED, 3, 1)


def test_judgements_on_several_sets_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(run) == 0
    for name, count in (("first", 12), ("second", 16), ("first", 12)):
        photos = tmp_path / name
        if not photos.exists():
            write_photos(photos, count)
        assert main(["judge", str(run), f"--train={photos}", f"--val={photos}"]) == 0
        told = capsys.readouterr().out
        assert judge_run(read_facts(run)).sentence in " ".join(told.split())
    found = read_judgements(read_facts(run))
    assert [Path(each["data"]).name for each in found] == ["first", "second"]
    with np.load(read_facts(run).answers) as held:
        answers, wanted = held["trained/flatten/knn_20"], held["wanted"]
    (score,) = (each for each in found[0]["scores"] if each["features"] == "trained")
    assert score["knn"]["20"] == pytest.approx(100 * (answers == wanted).mean())
    capsys.readouterr()
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.count("judged by accuracy") == 2


# ---- paired differences


def test_the_interval_of_a_difference_is_agresti_and_mins() -> None:
    """Of the four cells of a table, with half an image more in each."""
    both, own, other, none = 794, 150, 86, 570
    first = np.repeat([1, 1, 0, 0], [both, own, other, none])
    second = np.repeat([1, 0, 1, 0], [both, own, other, none])
    count, more, fewer = both + own + other + none + 2, own + 0.5, other + 0.5
    middle = (more - fewer) / count
    half = 1.959964 * sqrt((more + fewer) - (more - fewer) ** 2 / count) / count
    wanted = [100 * (own - other) / (count - 2), 100 * (middle - half), 100 * (middle + half)]
    assert compare_pairs(first, second) == pytest.approx(wanted)


@pytest.mark.parametrize(("losses", "first"), [([5.0] * 9, True), ([5.0] * 8 + [90.0], False)])
def test_where_the_loss_was_steady_before_it_was_not_finite_images_come_first(
    losses: list[float], first: bool
) -> None:
    status = Status(FAILED, 10, 20, "the loss of iteration 10 is not finite", "NonFiniteLossError")
    found = judge_run(facts(status=status, rows=steps(losses)))
    assert found.detail.startswith("The loss was steady") == first
    assert found.command == "sslengine replay run"
