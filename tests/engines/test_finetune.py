"""Fine-tuning from a run's weights: rates layer by layer, the row in the table, killed and resumed."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.checkpoint import files
from sslengine.config.resolve import resolve
from sslengine.config.sections import read
from sslengine.engine.services import Services
from sslengine.engine.task import SelfSupervisionTask
from sslengine.engines.evaluate import evaluate
from sslengine.engines.finetune import _key, finetune
from sslengine.engines.report import show_protocols, sort_by_start
from sslengine.engines.train import train
from sslengine.errors import CheckpointError, ConfigError
from sslengine.launch.auto import settle_widths
from sslengine.optim.build import build_optimizer
from sslengine.optim.options import OptimizerOptions
from tests.engines.rows import expect_complete
from tests.engines.runs import PowerCut, make_run, screen
from tests.engines.test_evaluate import FROZEN, SHAPES

VIT = "config.MODEL.TRUNK.VISION_TRANSFORMERS"
# Files on top of a run, the rate of the heads at 200 images a step, and the share of it that a layer
# has: decay 0.65 for each block, 0.7 for each stage. As VISSL numbers layers, the last norm of a
# ViT belongs to the last block.
RATES: dict[str, tuple[list[str], float, dict[str, float]]] = {
    "vit": (["config=quickstart/mae", f"{VIT}.NUM_LAYERS=3", f"{VIT}.USE_CLASS_TOKEN=true"],
            0.0005 * 200 / 256,
            {r"trunk\.(cls_token|pos_embed|patch_embed\..*)": 0.17850625,
             r"trunk\.blocks\.0\..*": 0.274625, r"trunk\.blocks\.1\..*": 0.4225,
             r"trunk\.(blocks\.2|norm)\..*": 0.65, r"heads\..*": 1.0}),
    "cnn": (["config=quickstart/simclr"], 0.0005 * 200 / 256,
            {r"trunk\.(base_model|_feature_blocks)?.*(conv1|bn1)\.(weight|bias)": 0.16807,
             r"trunk\..*layer1\..*": 0.2401, r"trunk\..*layer2\..*": 0.343,
             r"trunk\..*layer3\..*": 0.49, r"trunk\..*layer4\..*": 0.7, r"heads\..*": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("kind", RATES)
def test_the_rate_and_the_decay_of_each_parameter(kind: str, tmp_path: Path) -> None:
    arguments, rate, shares = RATES[kind]
    run = settle_widths(resolve([
        *arguments, "+config/benchmark/finetune=shapes", f"+config/benchmark/finetune={kind}",
        "config.DATA.NUM_DATALOADER_WORKERS=0", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=200",
        "config.MACHINE.PRECISION=fp32", *PEAK,
    ]))  # fmt: skip
    assert run.config.MODEL.HEAD.PARAMS[0][1].dims[1] == 10  # the kinds of shapes
    task = SelfSupervisionTask(
        run.config, tmp_path, torch.device("cpu"), hooks=[], services=Services()
    )
    task.prepare()
    task.optimizer.schedule(0.05)  # the end of the warm-up
    groups = {id(p): group for group in task.optimizer.param_groups for p in group["params"]}
    named = dict(task.base_model.named_parameters())
    assert len(groups) == len(named) > 10
    for name, parameter in named.items():
        share = [each for pattern, each in reversed(shares.items()) if re.fullmatch(pattern, name)]
        group = groups[id(parameter)]
        assert group["lr"] == pytest.approx(rate * share[0], rel=1e-6), name
        exempt = parameter.ndim == 1 or name.endswith(("cls_token", "pos_embed"))
        assert group["weight_decay"] == (0.0 if exempt else 0.05), name
    task.close()


# The rates of the published file, not those of the few shapes.
PEAK = [
    "config.OPTIMIZER.param_schedulers.lr.auto_lr_scaling.base_value=0.0005",
    "config.OPTIMIZER.param_schedulers.lr.schedulers=[{name: linear, start_value: 0.0, "
    "end_value: 0.0005}, {name: cosine, start_value: 0.0005, end_value: 0.000001}]",
]

TUNED: dict[str, Any] = {
    **FROZEN,
    "TEST_MODEL": True,
    "DATA__TRAIN__DROP_LAST": True,
    "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 20,
    "METERS": {
        "name": "accuracy_list_meter",
        "accuracy_list_meter": {"num_meters": 1, "topk_values": [1]},
    },
    "MODEL__FEATURE_EVAL_SETTINGS": {},
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 10]}]],
    "MODEL__WEIGHTS_INIT__SKIP_LAYERS": ["num_batches_tracked", "heads."],
    "CHECKPOINT__CHECKPOINT_FREQUENCY": 1,
    "HOOKS__EXTRA": [{"name": "test_power_cut", "after": 99}],
}


def _pretrained(folder: Path) -> None:
    train(make_run(folder, **SHAPES, TEST_MODEL=False, OPTIMIZER__num_epochs=1))


def _rows(folder: Path) -> dict[str, dict[str, Any]]:
    report = json.loads((folder / "evaluation.json").read_text())
    return {row["features"]: row for row in report["finetuned"]}


def _all_rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "evaluation.json").read_text())["finetuned"]
    return found


def _trunk(folder: Path) -> dict[str, torch.Tensor]:
    state = files.newest(folder / "checkpoints")[1]["classy_state_dict"]["base_model"]["model"]
    return {name: each for name, each in state["trunk"].items() if "running" not in name
            and "num_batches" not in name}  # fmt: skip


@pytest.mark.slow
def test_a_row_for_trained_and_for_untrained_weights(tmp_path: Path) -> None:
    """At a rate of zero each trunk is in the end what it was at the beginning."""
    _pretrained(tmp_path)
    still = {"name": "constant", "value": 0.0, "update_interval": "step"}
    run = make_run(tmp_path, "finetune", **TUNED, OPTIMIZER__num_epochs=1,
                   OPTIMIZER__param_schedulers__lr=still)  # fmt: skip
    finetune(run)
    rows = _rows(tmp_path)
    assert list(rows) == ["trained", "untrained"]
    began = _trunk(tmp_path)
    for start, same in (("trained", True), ("untrained", False)):
        folder = tmp_path / rows[start]["folder"]
        now = _trunk(folder)
        assert all(torch.equal(now[name], began[name]) for name in began) is same
        lines = [json.loads(each) for each in (folder / "metrics.jsonl").read_text().splitlines()]
        last = [each for each in lines if each["kind"] == "phase" and each["split"] == "test"][-1]
        assert rows[start]["metrics"] == {"top_1": last["accuracy_list_meter"]["top_1"]["0"]}
    assert re.search(r"finetune +top_1 +[\d.]+ % +[\d.]+ %", screen(run))
    assert not (tmp_path / "config_train.yaml").exists()
    assert "engine_name: finetune" in (tmp_path / "config_finetune.yaml").read_text()
    # Judging the frozen trunk later keeps the rows, in the file and in the table.
    run = make_run(tmp_path, "evaluate", **FROZEN)
    evaluate(run)
    assert _rows(tmp_path) == rows
    assert re.search(r"finetune +top_1 +[\d.]+ % +[\d.]+ %", screen(run))


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    _pretrained(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    finetune(make_run(tmp_path / "whole", "finetune", **TUNED, FINETUNE__UNTRAINED=False))
    cut = {**TUNED, "HOOKS__EXTRA": [{"name": "test_power_cut", "after": 4}],
           "FINETUNE__UNTRAINED": False}  # fmt: skip
    with pytest.raises(PowerCut):
        finetune(make_run(tmp_path / "cut", "finetune", **cut))
    run = make_run(tmp_path / "cut", "finetune", **TUNED, FINETUNE__UNTRAINED=False)
    finetune(run)
    assert "resumed from" in screen(run)
    whole, cut_rows = (_rows(tmp_path / name)["trained"] for name in ("whole", "cut"))
    assert {**cut_rows, "weights": ""} == {**whole, "weights": ""}
    expect_complete({"scores": [], "swept": [], "finetuned": [whole]})
    ends = [_trunk(tmp_path / name / whole["folder"]) for name in ("whole", "cut")]
    assert all(torch.equal(ends[0][name], each) for name, each in ends[1].items())
    # Complete: read, not trained again.
    again = make_run(tmp_path / "cut", "finetune", **TUNED, FINETUNE__UNTRAINED=False)
    finetune(again)
    assert "this run is complete" in screen(again)
    assert _rows(tmp_path / "cut")["trained"] == cut_rows


SAMPLING = "DATA__TRAIN__DATA_LIMIT_SAMPLING"


@pytest.mark.slow
def test_few_labels_are_drawn_or_listed(tmp_path: Path) -> None:
    """The list that a draw writes gives the same training; another list another folder."""
    _pretrained(tmp_path)
    few = {**TUNED, "FINETUNE__UNTRAINED": False, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 5,
           "OPTIMIZER__num_epochs": 1}  # fmt: skip
    finetune(make_run(tmp_path, "finetune", **few, **{f"{SAMPLING}__SHARE": 0.2}))
    drawn = _rows(tmp_path)["trained"]
    assert (drawn["labelled"], drawn["steps"]) == (12, 2)
    written = tmp_path / drawn["folder"] / "labelled.csv"
    rows = list(csv.DictReader(written.read_text().splitlines()))
    assert {int(row["label"]) for row in rows} == {*range(10)}
    given = tmp_path / "given.csv"
    given.write_bytes(written.read_bytes())
    again: dict[str, Any] = {**few, f"{SAMPLING}__LIST": str(given), "FINETUNE__NAME": "listed"}
    finetune(make_run(tmp_path, "finetune", **again))
    (listed,) = [row for row in _all_rows(tmp_path) if row["protocol"] == "listed"]
    ends = [_trunk(tmp_path / row["folder"]) for row in (drawn, listed)]
    assert all(torch.equal(ends[0][name], each) for name, each in ends[1].items())
    given.write_text("\n".join(given.read_text().splitlines()[:-1]))
    finetune(make_run(tmp_path, "finetune", **again))
    counts = [row["labelled"] for row in _all_rows(tmp_path) if row["protocol"] == "listed"]
    assert counts == [12, 11]


# The published recipes: epochs, rates of trunk and classifier at 256 images at the epochs, Nesterov.
FEW: dict[str, tuple[int, dict[int, tuple[float, float]], bool]] = {
    "simclr_1_percent": (60, {0: (0.05, 0.05), 30: (0.025, 0.025)}, True),
    "simclr_10_percent": (30, {0: (0.05, 0.05), 15: (0.025, 0.025)}, True),
    "vissl_1_percent": (70, {29: (0.05, 0.05), 30: (0.005, 0.005)}, True),
    "vissl_10_percent": (70, {29: (0.05, 0.05), 30: (0.005, 0.005)}, True),
    "swav_1_percent": (20, {11: (0.02, 5.0), 12: (0.004, 1.0), 16: (0.0008, 0.2)}, False),
    "swav_10_percent": (20, {11: (0.01, 0.2), 12: (0.002, 0.04), 16: (0.0004, 0.008)}, False),
}


@pytest.mark.parametrize("name", FEW)
def test_recipes_of_few_labels(name: str, tmp_path: Path) -> None:
    epochs, rates, nesterov = FEW[name]
    run = settle_widths(resolve([
        "config=quickstart/simclr", "+config/benchmark/finetune=shapes",
        f"+config/benchmark/semi_supervised={name}", "config.DATA.NUM_DATALOADER_WORKERS=0",
        "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=128", "config.DATA.TRAIN.DATA_LIMIT=3000",
        "config.OPTIMIZER.accumulate=2",
    ]))  # fmt: skip
    assert run.config.OPTIMIZER.num_epochs == epochs
    share = run.config.DATA.TRAIN.DATA_LIMIT_SAMPLING.SHARE
    assert f"_{100 * share:g}_percent" in name
    model = torch.nn.ModuleDict({"trunk": torch.nn.Linear(2, 2), "heads": torch.nn.Linear(2, 2)})
    options = read(run.config, OptimizerOptions)
    optimizer = build_optimizer(model, options, torch.device("cpu"), epochs)
    for epoch, expected in rates.items():
        optimizer.schedule(epoch / epochs)
        optimizer.on_epoch(epoch / epochs)
        found = {
            part: group["lr"] for group in optimizer.param_groups for part in model
            for weight in model[part].parameters() if any(weight is each for each in group["params"])
        }  # fmt: skip
        assert (found["trunk"], found["heads"]) == pytest.approx(expected, rel=1e-5), epoch
        for group in optimizer.param_groups:
            assert (group["weight_decay"], group["momentum"]) == (0.0, 0.9)
            assert group["nesterov"] is nesterov


SCALING = "OPTIMIZER__param_schedulers__lr__auto_lr_scaling"


def test_what_makes_another_run() -> None:
    """The recipe does; the number of ranks, which scales rates, the loader and hooks do not."""

    def key(weights: str = "a", **changes: Any) -> str:
        scaled = {f"{SCALING}__auto_scale": True}
        return _key(
            make_run(Path("nowhere"), "finetune", **{**TUNED, **scaled, **changes}), weights
        )

    same: list[dict[str, Any]] = [
        {"DISTRIBUTED__NUM_PROC_PER_NODE": 2}, {"DATA__NUM_DATALOADER_WORKERS": 1},
        {"HOOKS__EXTRA": []}, {"MODEL__WEIGHTS_INIT__PARAMS_FILE": "b"}, {"CHECKPOINT__CHECKPOINT_FREQUENCY": 5},
    ]  # fmt: skip
    other: list[dict[str, Any]] = [
        {"weights": "b"}, {"OPTIMIZER__num_epochs": 3}, {"SEED_VALUE": 1},
        {"DATA__TRAIN__DATA_LIMIT": 40}, {f"{SCALING}__base_value": 0.2},
        {"MODEL__WEIGHTS_INIT__NETWORK": "student"},
    ]  # fmt: skip
    assert {key(**each) for each in same} == {key()}
    assert len({key(), *(key(**each) for each in other)}) == len(other) + 1


def test_a_recipe_of_another_name_is_another_row() -> None:
    rows = [
        {"protocol": name, "features": start, "metrics": {"top_1": value}}
        for name, start, value in (("a", "trained", 90.0), ("a", "untrained", 70.0),
                                   ("b", "trained", 50.0), ("b", "trained", 60.0))
    ]  # fmt: skip
    run = make_run(Path("nowhere"))
    show_protocols(run.console, sort_by_start({"finetuned": rows}))
    lines = [line.split() for line in screen(run).splitlines()]
    assert lines[1:] == [
        ["a", "top_1", "90.0", "%", "70.0", "%"],
        ["b", "top_1", "60.0", "%", "-"],  # the newest
    ]


def test_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there are no trained weights"):
        finetune(make_run(tmp_path, "finetune", **TUNED))
    _pretrained(tmp_path)
    with pytest.raises(ConfigError, match="judged on test images"):
        finetune(make_run(tmp_path, "finetune", **{**TUNED, "TEST_MODEL": False}))
    with pytest.raises(ConfigError, match=r"FINETUNE.NAME: expected letters"):
        make_run(tmp_path, "finetune", **TUNED, FINETUNE__NAME="../other")
