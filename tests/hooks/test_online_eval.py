"""Evaluation within a run, through the real task: it says how good features are, and leaves no trace."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sklearn.neighbors import KNeighborsClassifier

from sslengine.checkpoint import files
from sslengine.engines.train import train
from sslengine.errors import ConfigError
from sslengine.evaluate.label_free.spectrum import compute_rankme as rankme
from sslengine.monitor.history import columns, read
from sslengine.predictor import Predictor
from sslengine.testing.state import differences, flat
from tests.engines.runs import make_run
from tests.methods.test_dino import RESNET as DINO
from tests.ranks import RankPool
from tests.tail import slow_but

SHAPES: dict[str, Any] = {
    "DATA__TRAIN__DATA_SOURCES": ["shapes"],
    "DATA__TRAIN__LABEL_SOURCES": ["shapes"],
    "DATA__TRAIN__LABEL_TYPE": "sample_index",
    "DATA__TRAIN__DATA_LIMIT": 60,
    "DATA__TRAIN__DEFAULT_GRAY_IMG_SIZE": 16,
    "OPTIMIZER__num_epochs": 3,
}
ONLINE = {
    "EVERY": 2, "WHAT": ["knn", "probe", "label_free"], "IMAGES": 40, "TOPK": [1, 5],
    "LABEL_FREE": ["rankme", "uniformity"],
}  # fmt: skip
CUT: dict[str, Any] = {"HOOKS__EXTRA": [{"name": "test_power_cut", "after": 5}]}
EACH_STEP: dict[str, Any] = {"LOG_FREQUENCY": 1}  # a record of each step's loss
TEACHER: dict[str, Any] = {**DINO, "DATA__TRAIN__DATA_LIMIT": 24}


def online(folder: Path) -> dict[int, dict[str, float]]:
    """By train phase."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    phases = [line for line in lines if line["kind"] == "phase"]
    return {n: line["online"] for n, line in enumerate(phases) if "online" in line}


def state(folder: Path) -> dict[str, Any]:
    """All that the newest checkpoint holds, but for times."""
    return files.newest(folder / "checkpoints")[1]["classy_state_dict"]


def trained(folder: Path, **changes: Any) -> Path:
    train(make_run(folder, **{**SHAPES, **changes}))
    return folder


def expect_no_trace(plain: Path, watched: Path) -> None:
    """The same weights, optimizer, batch norm, random streams and losses of each step, to the bit."""
    one, other = flat(state(plain)), flat(state(watched))
    assert any("rng.torch" in name for name in one)
    assert differences(one, other) == []
    assert online(plain) == {}
    assert online(watched)
    losses = [columns(read(each))["loss"] for each in (plain, watched)]
    assert losses[0] == losses[1] != []


def test_the_run_does_not_change_by_a_bit(tmp_path: Path) -> None:
    """With loader workers, and dropout's draws."""
    plain = trained(tmp_path / "plain", **EACH_STEP, **TEACHER)
    watched = {**ONLINE, "EVERY": 1}
    expect_no_trace(
        plain, trained(tmp_path / "watched", **EACH_STEP, **TEACHER, HOOKS__ONLINE_EVAL=watched)
    )


def test_the_neighbours_are_those_of_the_predictors_features(tmp_path: Path) -> None:
    """An independent way to the same number: the checkpoint's features, and scikit-learn."""
    folder = trained(tmp_path, HOOKS__ONLINE_EVAL={**ONLINE, "IMAGES": 60})
    found = Predictor(folder, overrides=["config.DATA.TRAIN.LABEL_TYPE=standard"]).read_all()
    rows, labels = found.layers["trunk"].numpy(), found.targets.numpy()
    right = 0
    for place in range(60):
        others = [each for each in range(60) if each != place]
        judge = KNeighborsClassifier(1, metric="cosine", algorithm="brute")
        judge.fit(rows[others], labels[others])
        right += judge.predict(rows[[place]])[0] == labels[place]
    assert online(folder)[2]["knn_1"] == pytest.approx(100 * right / 60)


def on_rank(folder: Path, **changes: Any) -> None:
    trained(folder, **EACH_STEP, **TEACHER, DATA__TRAIN__BATCHSIZE_PER_REPLICA=2,
            DISTRIBUTED__NUM_PROC_PER_NODE=2, OPTIMIZER__num_epochs=2, **changes)  # fmt: skip


@pytest.mark.slow
def test_killed_and_resumed_at_two_ranks(tmp_path: Path, two_ranks: RankPool) -> None:
    watched = {"HOOKS__ONLINE_EVAL": {**ONLINE, "EVERY": 1, "IMAGES": 20},
               "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 1}  # fmt: skip
    with pytest.raises(Exception, match="PowerCut"):
        two_ranks.run(partial(on_rank, **watched, **CUT), tmp_path / "cut")
    two_ranks.run(partial(on_rank, **watched), tmp_path / "cut")
    two_ranks.run(partial(on_rank, CHECKPOINT__CHECKPOINT_ITER_FREQUENCY=1), tmp_path / "plain")
    expect_no_trace(tmp_path / "plain", tmp_path / "cut")


@pytest.mark.parametrize("network", slow_but(["teacher"], ["auto", "student", "teacher"]))
def test_the_network_that_the_method_is_judged_by(network: str, tmp_path: Path) -> None:
    """DINO's teacher, or its student if it is asked for, as the predictor finds it."""
    options = {"EVERY": 1, "WHAT": ["label_free"], "IMAGES": 24, "LABEL_FREE": ["rankme"],
               "NETWORK": network}  # fmt: skip
    trained(tmp_path, **DINO, DATA__TRAIN__DATA_LIMIT=24, HOOKS__ONLINE_EVAL=options)
    found = {name: Predictor(tmp_path, network=name).read_all().layers["trunk"]
             for name in ("student", "teacher")}  # fmt: skip
    ranks = {name: float(rankme(rows.double())) for name, rows in found.items()}
    assert ranks["student"] != pytest.approx(ranks["teacher"], rel=1e-4)
    last = max(online(tmp_path))
    wanted = ranks["teacher" if network == "auto" else network]
    assert online(tmp_path)[last]["rankme"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "mode", "name"),
    [("train.online.uniformity", "min", "uniformity"), ("online.knn5", "max", "knn_5")],
)
def test_the_best_checkpoint_by_it(
    metric: str, mode: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the last two of four phases; the others are not evaluated, which is no mistake."""
    best = {"METRIC": metric, "MODE": mode}
    more = {"OPTIMIZER__num_epochs": 5, "HOOKS__ONLINE_EVAL": {**ONLINE, "LABEL_FREE": [
        "rankme", "uniformity"]}}  # fmt: skip
    trained(tmp_path, **more, CHECKPOINT__BEST=best)
    found = online(tmp_path)
    assert list(found) == [1, 3, 4]
    (kept,) = (tmp_path / "checkpoints").glob("best*.torch*")
    wanted = (min if mode == "min" else max)(each[name] for each in found.values())
    # Of equally good ones the newest.
    phase = max(phase for phase, each in found.items() if each[name] == wanted)
    assert kept.resolve().stem.endswith(f"phase{phase}")
    assert "there is no metric" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"DATA__TRAIN__LABEL_SOURCES": []}, "HOOKS.ONLINE_EVAL.WHAT"),
        ({"HOOKS__ONLINE_EVAL": {**ONLINE, "IMAGES": 6}}, "HOOKS.ONLINE_EVAL.IMAGES"),
    ],
)
def test_mistakes(changes: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        trained(tmp_path, **{"HOOKS__ONLINE_EVAL": ONLINE, **changes})
