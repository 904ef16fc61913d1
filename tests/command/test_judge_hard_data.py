"""`sslengine judge` on data and weights that allow little: it says what it could not do, the rest is computed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sslengine.command import judge
from sslengine.config.resolve import Resolved
from sslengine.engines.train import train
from sslengine.errors import ConfigError, DataError, Preempted
from sslengine.evaluation.options import ON_FEATURES, SUITES
from tests.config.recipes import resolved
from tests.data.pictures import write_picture
from tests.engines.rows import expect_complete
from tests.engines.runs import make_run
from tests.engines.test_evaluate import SHAPES
from tests.tail import slow_but

SIDE = 16
# Class names of the training images, how many of each, and what the trunk's weights become.
Case = tuple[dict[str, int], float | None]
THREE = {"a": 4, "b": 4, "c": 4}
CASES: dict[str, Case] = {
    "no labels": ({"": 12}, None),
    "one class": ({"a": 12}, None),
    "singletons": ({f"class {number}": 1 for number in range(12)}, None),
    "constant features": (THREE, 0.0),
    "NaN features": (THREE, float("nan")),
    "four images": ({"a": 2, "b": 2}, None),
}
UNLABELLED = {"no labels", "one class"}
# Protocols that need data or columns which no case names: the first row has a note.
OF_OTHER_DATA = {"copies", "domains", "other_sets", "videos"}
QUICK = [("NaN features", "quick")]
ALL = [(name, suite) for suite in ("quick", "frozen", "full") for name in CASES]
FEW = {
    "EVALUATE.CORRUPTIONS.KINDS": "[fog]", "EVALUATE.CORRUPTIONS.SEVERITIES": "[1]",
    "EVALUATE.LABEL_FREE": "[rankme]", "EVALUATE.OUTSIDE.SOURCE": "upright_shapes",
    "EVALUATE.OUTSIDE.LIMIT": "6", "EVALUATE.SEGMENTATION.ITERATIONS": "3", "LINEAR_PROBE.PENALTIES": "[1.0]", "SVM.max_iter": "20",
    "SVM.costs.costs_list": "[1.0]", "SVM.low_shot.k_values": "[1]",
    "SVM.low_shot.sample_inds": "[1]", "OPTIMIZER.num_iterations": "2", "HEAD_SWEEP.LR": "[0.1]",
    "HEAD_SWEEP.WEIGHT_DECAY": "[0.0]",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(make_run(folder, **SHAPES, OPTIMIZER__num_epochs=1))
    return folder


def _weights(run: Path, value: float, path: Path) -> str:
    """The run's, all of them that one number."""
    kept = torch.load(run / "checkpoints/checkpoint.torch", weights_only=False)
    for each in kept["classy_state_dict"]["base_model"]["model"]["trunk"].values():
        if each.is_floating_point():
            each.fill_(value)
    torch.save(kept, path)
    return str(path)


def _images(root: Path, classes: dict[str, int]) -> Iterator[str]:
    """With masks of two classes."""
    mask = Image.fromarray(np.repeat(np.eye(2, dtype=np.uint8), SIDE // 2, 0).repeat(SIDE // 2, 1))
    for split, counts in (("train", classes), ("val", dict.fromkeys(classes, 2))):
        for start, (name, count) in enumerate(counts.items()):
            for number in range(count):
                path = write_picture(
                    root / split / name / f"{number}.png", 20 * start + number, SIDE
                )
                place = root / "masks" / path.relative_to(root)
                place.parent.mkdir(parents=True, exist_ok=True)
                mask.save(place)
        yield from (f"--{split}", str(root / split))


@pytest.mark.parametrize(("name", "suite"), slow_but(QUICK, ALL))
def test_what_cannot_be_done_is_a_note(
    name: str, suite: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes, value = CASES[name]
    values = dict(FEW)
    for split, folder in (("TRAIN", "train"), ("TEST", "val")):
        values[f"EVALUATE.DENSE.MASKS_{split}"] = str(tmp_path / "masks" / folder)
    if value is not None:
        values["MODEL.WEIGHTS_INIT.PARAMS_FILE"] = _weights(trained, value, tmp_path / "w.torch")
    make_run(tmp_path / "run", **SHAPES).describe()
    values.setdefault(
        "MODEL.WEIGHTS_INIT.PARAMS_FILE", str(trained / "checkpoints/checkpoint.torch")
    )
    sets = [each for key in values for each in ("--set", f"{key}={values[key]}")]
    images = [*_images(tmp_path, classes)]
    status = judge.main([str(tmp_path / "run"), *images, "--suite", suite, *sets])
    told = capsys.readouterr()
    # Weights that are NaN cannot be fine-tuned: an error of that part alone.
    assert status == (name == "NaN features" and suite == "full"), told.err
    report = json.loads((tmp_path / "run/evaluation.json").read_text())
    expect_complete(report)
    scores = {each["features"]: each for each in report["scores"]}
    assert set(scores) == {"trained", "untrained", "raw pixels"}
    for kind, score in scores.items():
        broken = name == "NaN features" and kind == "trained"
        assert (score["label_free"]["rankme"]["value"] is None) == broken
        assert bool(score["knn"]) == (name not in UNLABELLED and not broken)
        wanted = {*SUITES[suite]} - ({*ON_FEATURES} if name in UNLABELLED else set())
        wanted -= OF_OTHER_DATA if kind != "trained" else set()
        assert {*score["protocols"]} | {"corruptions"} == wanted | {"corruptions"}
        for protocol, found in score["protocols"].items():
            assert found["metrics"] or found["notes"], protocol
            assert not (found["metrics"] and broken), protocol
    for note in report["notes"]:
        assert note in told.out
    left_out = [each for each in report["notes"] if "left out" in each]
    swept = suite != "quick" and name not in {*UNLABELLED, "four images"}
    assert {row["protocol"] for row in report["swept"]} == (
        {"linear_sweep", "attentive_sweep"} if swept else set()
    )
    assert any(each.startswith("linear_sweep") for each in left_out) == (
        suite != "quick" and not swept
    )
    assert any(each.startswith("finetune") for each in left_out) == (
        suite == "full" and name in UNLABELLED
    )


def _judged(
    folder: Path, trained: Path, *arguments: str, suite: str = "frozen", **changes: Any
) -> dict[str, Any]:
    """Without further protocols."""
    make_run(folder, **{**SHAPES, **changes}).describe()
    weights = trained / "checkpoints/checkpoint.torch"
    sets = ["--set", f"MODEL.WEIGHTS_INIT.PARAMS_FILE={weights}", "--set", "EVALUATE.PROTOCOLS=[]"]
    assert judge.main([str(folder), *arguments, "--suite", suite, *sets]) == 0
    report: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return report


def test_too_few_images_for_a_sweep(trained: Path, tmp_path: Path) -> None:
    report = _judged(tmp_path / "run", trained, *_images(tmp_path, {"a": 2, "b": 2}))
    assert report["scores"][0]["linear"] is not None
    assert (
        "linear_sweep, attentive_sweep: left out, 4 training images are too few"
        in report["notes"][-1]
    )


@pytest.mark.slow
def test_labels_of_the_training_images_alone(trained: Path, tmp_path: Path) -> None:
    """Each image is classified by the others: of --val without classes, and of a run's two images."""
    bare = write_picture(tmp_path / "bare" / "0.png", 5, SIDE).parent
    _, train, *_ = _images(tmp_path, {"a": 3, "b": 3})
    report = _judged(tmp_path / "run", trained, "--train", train, "--val", str(bare))
    assert len(report["scores"][0]["knn"]) == 2
    assert (
        "linear_sweep, attentive_sweep: left out, the images of TEST have no labels"
        in report["notes"]
    )
    for name in "ab":
        write_picture(tmp_path / "two" / name / "0.png", ord(name), SIDE)
    few = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(tmp_path / "two")], "DATA_LIMIT": -1}
    own = {f"DATA__TRAIN__{key}": each for key, each in few.items()}
    report = _judged(tmp_path / "own", trained, suite="quick", **own)
    assert report["scores"][0]["knn"]["1"] == 0.0  # the other is of the other class
    assert report["chance"] == 50.0


@pytest.mark.parametrize(
    ("errors", "status", "started"),
    [
        ({}, 0, ["evaluate", "sweep", "sweep", "finetune"]),
        ({"evaluate": DataError("one")}, 1, ["evaluate", "sweep", "sweep", "finetune"]),
        ({"evaluate": DataError("one"), "sweep": ConfigError("two")}, 2,
         ["evaluate", "sweep", "sweep", "finetune"]),
        ({"sweep": Preempted("saved")}, os.EX_TEMPFAIL, ["evaluate", "sweep"]),
        ({"evaluate": DataError("one"), "finetune": KeyboardInterrupt()}, 130,
         ["evaluate", "sweep", "sweep", "finetune"]),
    ],
)  # fmt: skip
def test_an_error_of_one_part_does_not_stop_the_others(
    errors: dict[str, BaseException], status: int, started: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The exit status is the worst; an error is printed once. A signal ends all parts."""
    found: list[str] = []

    def run_all(runs: list[Resolved]) -> None:
        (run,) = runs
        found.append(run.engine_name)
        if run.engine_name in errors:
            raise errors[run.engine_name]
        (tmp_path / "evaluation.json").write_text('{"scores": []}')

    monkeypatch.setattr(judge, "run_all", run_all)
    of = resolved(CHECKPOINT__DIR=str(tmp_path))
    attentive = resolved(CHECKPOINT__DIR=str(tmp_path), HEAD_SWEEP__HEAD="attentive")
    engines = (("evaluate", of), ("sweep", of), ("sweep", attentive), ("finetune", of))
    parts = [replace(each, engine_name=name) for name, each in engines]
    assert judge.start_parts(parts, ["dense: left out"]) == status
    assert found == started
    told = capsys.readouterr()
    if status > 2:  # it will be continued
        assert "notes" not in (tmp_path / "evaluation.json").read_text()
        return
    notes = json.loads((tmp_path / "evaluation.json").read_text())["notes"]
    assert told.out.splitlines() == [f"  note        {each}" for each in notes]
    wanted = [f"evaluate: {errors['evaluate']}"] if "evaluate" in errors else []
    wanted += ["linear_sweep: two", "attentive_sweep: two"] if "sweep" in errors else []
    assert notes == ["dense: left out", *wanted]
    assert told.err.count("error: ") == len(errors)
    assert judge.start_parts(parts[:1], ["dense: left out"]) == (1 if errors else 0)
    assert json.loads((tmp_path / "evaluation.json").read_text())["notes"] == notes
