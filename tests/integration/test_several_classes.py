"""Images that show several classes, from a list's names to training, tests, judging, predicting."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sslengine.distributed.ranks import rank
from sslengine.engines.evaluate import evaluate
from sslengine.engines.train import train
from sslengine.errors import DataError
from sslengine.predictor import Predictor
from sslengine.predictor.report import as_json, as_text
from tests.engines.runs import make_run, screen
from tests.ranks import RankPool

# A colour is a class; what is there shines in that channel.
COLOURS = ("blue", "green", "red")
CHANNELS = (2, 1, 0)
Changes = dict[str, Any]


def write_images(root: Path) -> Path:
    draw = np.random.default_rng(0)
    for split, repeats in (("train", 3), ("val", 2)):
        shown = [each for each in product((0, 1), repeat=3) for _ in range(repeats)]
        if split == "val":  # without blue
            shown = [each for each in shown if any(each) and not each[0]]
        lines = ["path,tags"]
        for number, each in enumerate(shown):
            pixels = draw.integers(0, 40, (8, 8, 3))
            for there, channel in zip(each, CHANNELS, strict=True):
                pixels[..., channel] += 200 * there
            Image.fromarray(pixels.astype(np.uint8)).save(root / f"{split}{number}.png")
            tags = [name for name, there in zip(COLOURS, each, strict=True) if there]
            lines.append(f"{split}{number}.png,{'|'.join(reversed(tags))}")
        (root / f"{split}.csv").write_text("\n".join(lines) + "\n")
        rows = np.array(shown)
        rows[::3, 1] = -1  # green is not known everywhere
        np.save(root / f"{split}.npy", rows)
        cells = [["" if each < 0 else f"{each:.1f}" for each in row] for row in rows]
        lines = [f"{split}{number}.png,{','.join(row)}" for number, row in enumerate(cells)]
        table = "\n".join([f"path,{','.join(COLOURS)}", *lines])
        (root / f"{split}_columns.csv").write_text(table + "\n")
    return root


def _changes(root: Path, batch: int = 8, **more: Any) -> Changes:
    def split(name: str) -> Changes:
        return {
            "DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": [str(root / f"{name}.csv")],
            "LABEL_SOURCES": ["csv_filelist"], "LABEL_COLUMN": "tags", "LABEL_SEPARATOR": "|",
            "LABEL_TYPE": "standard", "BATCHSIZE_PER_REPLICA": batch, "DROP_LAST": False,
            "TRANSFORMS": [{"name": "ToTensor"}], "COLLATE_FUNCTION": "default_collate",
        }  # fmt: skip

    return {
        "TEST_MODEL": True,
        "DATA__TRAIN": split("train"),
        "DATA__TEST": split("val"),
        "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 3]}]],
        "METERS": {"names": ["mean_ap_list_meter", "recall_at_k_list_meter"],
                   "mean_ap_list_meter": {"num_classes": 3}},
        "LOSS": {"name": "bce_logits_multiple_output_single_target"},
        "MODEL__TRUNK__RESNETS__NORM": "GroupNorm",
        "MODEL__TRUNK__RESNETS__GROUPNORM_GROUPS": 1,
        "OPTIMIZER__name": "adamw",
        "OPTIMIZER__param_schedulers__lr__start_value": 0.01,
        "OPTIMIZER__num_epochs": 30,
        "CHECKPOINT__CHECKPOINT_FREQUENCY": -1,
        **more,
    }  # fmt: skip


def several_classes(root: Path, **more: Any) -> Changes:
    """Indicators of a .npy file."""
    changes = _changes(root, **more)
    for key, name in (("DATA__TRAIN", "train"), ("DATA__TEST", "val")):
        changes[key] |= {"LABEL_SOURCES": ["disk_filelist"], "LABEL_COLUMN": "",
                         "LABEL_SEPARATOR": "", "LABEL_PATHS": [f"{root}/{name}.npy"]}  # fmt: skip
    return changes


def _columns(root: Path, **more: Any) -> Changes:
    """The same indicators in the columns of a table."""
    changes = _changes(root, **more)
    for key, name in (("DATA__TRAIN", "train"), ("DATA__TEST", "val")):
        changes[key] |= {"DATA_PATHS": [f"{root}/{name}_columns.csv"], "LABEL_COLUMN": "",
                         "LABEL_SEPARATOR": "", "LABEL_COLUMNS": list(COLOURS)}  # fmt: skip
    return changes


def _records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _tests(folder: Path) -> list[dict[str, Any]]:
    return [each for each in _records(folder) if each.get("split") == "test"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def trained(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    run = make_run(folder, **_changes(images))
    train(run)
    run.describe()
    return folder


def test_names_and_numbers_are_those_of_train(trained: Path) -> None:
    last = _tests(trained)[-1]["mean_ap_list_meter"]
    assert last == {"mAP": {"0": 100.0}, "AP": {"0": {"1": 100.0, "2": 100.0}}}
    state = torch.load(trained / "checkpoints" / "checkpoint.torch")["classy_state_dict"]
    assert state["classes"] == [list(COLOURS)]


def test_predictions(images: Path, trained: Path) -> None:
    predictor = Predictor(trained, nearest=2, device="cpu")
    file = images / "val4.png"  # green and red
    found = {str(file): predictor(file)}
    report = as_json(predictor, found)
    assert report["class_names"] == list(COLOURS)
    assert [each > 0.5 for each in report["images"][0]["classes"]] == [False, True, True]
    assert report["images"][0]["nearest"][0]["label"] == [1, 2]
    assert "class green, red)" in as_text(predictor, found)


@pytest.mark.slow
def test_judging(images: Path, trained: Path) -> None:
    frozen = {"MODEL__FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True,
                                               "EXTRACT_TRUNK_FEATURES_ONLY": True},
              "NEAREST_NEIGHBOR": {"TOPK": 3}}  # fmt: skip
    run = make_run(trained, "evaluate", **_changes(images, **frozen))
    evaluate(run)
    report = json.loads((trained / "evaluation.json").read_text())
    assert (report["metric"], report["classes"]) == ("mAP", list(COLOURS))
    raw = next(each for each in report["scores"] if each["features"] == "raw pixels")
    assert (raw["knn"], raw["linear"]) == ({"3": 100.0}, 100.0)
    assert "kNN mAP (k=3)" in screen(run)


def _train_on_rank(folder: Path, changes: Changes) -> int:
    train(make_run(folder, **changes))
    return rank()


@pytest.mark.slow
def test_two_ranks_are_one_process(images: Path, tmp_path: Path, two_ranks: RankPool) -> None:
    """Also where ranks know another number of labels of a class."""
    short = {"OPTIMIZER__num_epochs": 2, "OPTIMIZER__name": "sgd", "LOG_FREQUENCY": 1,
             "OPTIMIZER__param_schedulers__lr__start_value": 0.1}  # fmt: skip
    train(make_run(tmp_path / "one", **several_classes(images, **short)))
    on_two = {**several_classes(images, batch=4, **short), "DISTRIBUTED__NUM_PROC_PER_NODE": 2}
    two_ranks.run(_train_on_rank, tmp_path / "two", on_two)
    for one, two in zip(_records(tmp_path / "one"), _records(tmp_path / "two"), strict=True):
        if "mean_ap_list_meter" in one:
            assert two["mean_ap_list_meter"] == one["mean_ap_list_meter"]
            assert two["recall_at_k_list_meter"] == one["recall_at_k_list_meter"]
        if one["kind"] == "step":
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)


def test_columns_of_a_table_are_rows_of_indicators(images: Path, tmp_path: Path) -> None:
    """Unknown cells are masked as the -1 of a .npy file are; classes have the columns' names."""
    short = {"OPTIMIZER__num_epochs": 2, "LOG_FREQUENCY": 1}
    for name, changes in (("npy", several_classes), ("csv", _columns)):
        train(make_run(tmp_path / name, **changes(images, **short)))
    npy, csv = (
        [(each.get("loss"), each.get("mean_ap_list_meter")) for each in _records(tmp_path / name)]
        for name in ("npy", "csv")
    )
    assert csv == npy
    state = torch.load(tmp_path / "csv" / "checkpoints" / "checkpoint.torch")["classy_state_dict"]
    assert state["classes"] == [list(COLOURS)]


def test_what_does_not_fit_is_told_before_the_first_step(images: Path, tmp_path: Path) -> None:
    def told(changes: Changes, message: str) -> None:
        with pytest.raises(DataError, match=message):
            train(make_run(tmp_path / "run", **changes))

    told(_changes(images, LOSS={"name": "cross_entropy_multiple_output_single_target"}),
         r"config.DATA.TRAIN.LABEL_SOURCES.0: .*bce_logits")  # fmt: skip
    swapped = _changes(images)
    swapped["DATA__TRAIN"], swapped["DATA__TEST"] = swapped["DATA__TEST"], swapped["DATA__TRAIN"]
    told(swapped, r"DATA.TEST.*1 of its classes .* TRAIN .*blue[\s\S]*'blue' is .*train\d+.png")
    stratified = _changes(images)
    stratified["DATA__TRAIN"]["STRATIFIED_SAMPLER"] = {"ENABLED": True, "STEP_PER_EPOCH": 2}
    told(stratified, r"STRATIFIED_SAMPLER and POWER_LAW_SAMPLER need .* one class for each image")
