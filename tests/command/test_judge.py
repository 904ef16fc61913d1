"""`sslengine judge RUN`: on which machine, with labels, and on data that is hard to judge."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sslengine
from sslengine.command import judge
from sslengine.command.arguments import make_parser
from sslengine.command.front import main
from sslengine.command.front import main as command
from sslengine.command.machine import Machine, judging_keys
from sslengine.config.compose import overrides
from sslengine.config.resolve import Resolved, resolve
from sslengine.distributed.ranks import gpu_count
from sslengine.engines.train import train
from sslengine.errors import ConfigError, DataError, Preempted
from sslengine.evaluate.options import ON_FEATURES, SUITES
from tests.command.photos import write_photos
from tests.config.recipes import resolved
from tests.data.pictures import write_picture
from tests.engines.rows import expect_complete
from tests.engines.runs import make_run
from tests.engines.test_evaluate import SHAPES
from tests.tail import slow_but

ON_TWO_CORES = Machine(gpus=0, memory=0, cores=2, name="")
ON_FOUR_GPUS = Machine(gpus=4, memory=80 << 30, cores=32, name="H100")
ON_APPLES = Machine(gpus=0, memory=16 << 30, cores=8, name="", apple=True)


def _found(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, arguments: str = "", **config: Any
) -> tuple[dict[str, str], str]:
    monkeypatch.setattr("sslengine.command.machine.look", lambda device, gpus: machine)
    given = make_parser(judge.__name__).parse_args(["a_run", *arguments.split()])
    keys = overrides({key.replace("__", "."): value for key, value in config.items()})
    made, note = judging_keys(given, resolve(["config=quickstart/simclr", *keys]).config)
    pairs = (each.removeprefix("config.").split("=") for each in made)
    return {key.split(".")[1]: value for key, value in pairs}, note


def _of_eight(**more: Any) -> dict[str, Any]:
    return {"MACHINE__DEVICE": "gpu", "DISTRIBUTED__NUM_PROC_PER_NODE": 8, **more}


@pytest.mark.parametrize(
    ("machine", "device", "ranks", "workers"),
    [(ON_TWO_CORES, "cpu", 1, 1), (ON_FOUR_GPUS, "gpu", 4, 8), (ON_APPLES, "mps", 1, 7)],
)
def test_a_run_of_more_gpus_takes_what_there_is_and_says_so(
    machine: Machine, device: str, ranks: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, note = _found(monkeypatch, machine, **_of_eight())
    assert made == {
        "DEVICE": device, "NUM_PROC_PER_NODE": str(ranks), "NUM_NODES": "1",
        "NUM_DATALOADER_WORKERS": str(workers),
    }  # fmt: skip
    assert note.startswith(f"computed on {machine}: the run has MACHINE.DEVICE=gpu and DISTRIB")
    made, _ = _found(monkeypatch, machine, "--workers 3", **_of_eight())
    assert made["NUM_DATALOADER_WORKERS"] == "3"


def test_a_machine_that_has_all_of_it_computes_as_the_run_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = _of_eight(DISTRIBUTED__NUM_PROC_PER_NODE=4)
    assert _found(monkeypatch, ON_FOUR_GPUS, **keys) == ({}, "")
    unseen: Any = None  # a run on a CPU runs anywhere: the machine is not asked for GPUs
    assert _found(monkeypatch, unseen, MACHINE__DEVICE="cpu") == ({}, "")
    assert _found(monkeypatch, unseen, MACHINE__DEVICE="auto") == ({}, "")
    assert _found(monkeypatch, ON_APPLES, MACHINE__DEVICE="mps") == ({}, "")
    made, _ = _found(monkeypatch, ON_TWO_CORES, MACHINE__DEVICE="mps")
    assert made["DEVICE"] == "cpu"


def test_what_was_asked_for_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    made, note = _found(monkeypatch, ON_TWO_CORES, "--device cpu", **_of_eight())
    assert made == {"DEVICE": "cpu", "NUM_PROC_PER_NODE": "1", "NUM_NODES": "1"}
    assert not note
    said = "--set DISTRIBUTED.NUM_PROC_PER_NODE=2 --workers 0"
    made, note = _found(monkeypatch, ON_TWO_CORES, said, **_of_eight())
    assert (made, note) == ({"NUM_DATALOADER_WORKERS": "0"}, "")
    # A job of SLURM, or a process of torchrun, has its place.
    assert _found(monkeypatch, ON_TWO_CORES, **_of_eight(SLURM__USE_SLURM=True)) == ({}, "")
    monkeypatch.setenv("RANK", "0")
    assert _found(monkeypatch, ON_TWO_CORES, **_of_eight()) == ({}, "")


def _scores(judged: dict[str, Any]) -> list[Any]:
    return [(each["features"], each["knn"], each["linear"]) for each in judged["scores"]]


@pytest.mark.slow
@pytest.mark.skipif(gpu_count() > 0, reason="for a machine without GPUs")
def test_a_run_of_eight_gpus_is_judged_without_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = write_photos(tmp_path / "photos")
    run = sslengine.train(
        photos, "simclr", model="resnet10t", epochs=1, size=32, workers=0, device="cpu",
        out=tmp_path / "run",
    ).folder  # fmt: skip
    capsys.readouterr()
    assert main(["judge", str(run), "--json"]) == 0
    scores = _scores(json.loads(capsys.readouterr().out))
    elsewhere = shutil.copytree(run, tmp_path / "elsewhere")
    (elsewhere / "evaluation.json").unlink()
    shutil.rmtree(elsewhere / "features")
    config = (elsewhere / "config.yaml").read_text()
    for own, cluster in (("DEVICE: cpu", "DEVICE: gpu"), ("PER_NODE: 1", "PER_NODE: 8")):
        assert own in config
        config = config.replace(own, cluster)
    (elsewhere / "config.yaml").write_text(config)
    assert main(["judge", str(elsewhere), "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert _scores(judged) == scores
    assert any("the run has MACHINE.DEVICE=gpu" in note for note in judged["notes"])
    assert main(["judge", str(elsewhere), "--device=gpu"]) == 2
    assert "--device gpu: torch finds no GPU" in capsys.readouterr().err


# ---- `sslengine judge --suite`: what is trained with labels, by which recipe, and what it is
# given.


VIT: dict[str, Any] = {
    "MODEL__TRUNK": {
        "NAME": "vision_transformer",
        "VISION_TRANSFORMERS": {
            "IMAGE_SIZE": 8, "PATCH_SIZE": 4, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": 16,
            "MLP_DIM": 32,
        },
    },
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": [16, 8]}]],
}  # fmt: skip
OTHER = {"DATA__TRAIN__DATA_LIMIT": 8}


def _images(root: Path) -> list[str]:
    for split, count in (("train", 5), ("val", 2)):
        for name in "abc":
            for number in range(count):
                write_picture(root / split / name / f"{number}.png", number, 16)
    return ["--train", str(root / "train"), "--val", str(root / "val")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trunk", "decay", "mixed"),
    [(VIT, 0.65, True), ({}, 0.7, False)],
)
def test_the_recipe_fits_the_trunk(
    trunk: dict[str, Any], decay: float, mixed: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """Pretraining's optimizer, heads, hooks and expectations are not those of fine-tuning."""
    of_pretraining = {"OPTIMIZER__use_larc": True, "EXPECTED_RESULTS": [["train.loss", 1.0, 9.0]]}
    make_run(tmp_path / "run", **{**OTHER, **of_pretraining, **trunk}).describe()
    started: list[Resolved] = []
    notes: list[str] = []

    def start(runs: list[Resolved], left_out: list[str]) -> int:
        started.extend(runs)
        notes.extend(left_out)
        return 0

    monkeypatch.setattr(judge, "start_parts", start)
    images = _images(tmp_path)
    arguments = [str(tmp_path / "run"), *images, "--suite", "full"]
    assert judge.main([*arguments, "--set", "OPTIMIZER.num_epochs=7"]) == 0
    frozen, *swept, tuned, ten, one = started
    assert [each.engine_name for each in started] == ["evaluate", *["sweep"] * 2, *["finetune"] * 3]
    few = [each.config.DATA.TRAIN.DATA_LIMIT_SAMPLING.SHARE for each in (tuned, ten, one)]
    assert few == [0.0, 0.1, 0.01]
    names = [each.config.FINETUNE.NAME for each in (tuned, ten, one)]
    recipe = "finetune" if mixed else "simclr"
    assert names == ["finetune", f"{recipe}_10_percent", f"{recipe}_1_percent"]
    # Of 5 images of each of 3 classes one is drawn.
    assert [each.config.DATA.TRAIN.BATCHSIZE_PER_REPLICA for each in (ten, one)] == [2, 2]
    assert one.config.OPTIMIZER.name == ("adamw" if mixed else "sgd")
    assert one.config.DATA.TRAIN.TRANSFORMS == tuned.config.DATA.TRAIN.TRANSFORMS
    assert [each.config.HEAD_SWEEP.HEAD for each in swept] == ["linear", "attentive"]
    for each in swept:
        assert each.config.DATA.TRAIN.TRANSFORMS == tuned.config.DATA.TRAIN.TRANSFORMS
        assert each.config.DATA.TEST.TRANSFORMS == frozen.config.DATA.TEST.TRANSFORMS
        assert each.config.DATA.TRAIN.BATCHSIZE_PER_REPLICA == 12  # 13 of 15 images are trained on
        assert (each.config.OPTIMIZER.num_epochs, each.config.OPTIMIZER.num_iterations) == (7, None)
    config = tuned.config
    assert config.OPTIMIZER.layer_wise_lr_decay.decay == decay
    assert (config.OPTIMIZER.num_epochs, config.OPTIMIZER.use_larc) == (7, False)
    assert config.EXPECTED_RESULTS == []
    assert str(tmp_path / "run") == config.CHECKPOINT.DIR
    assert config.MODEL.HEAD.PARAMS[0][1].dims == [16 if mixed else 32, 3]
    names = [each.name for each in config.DATA.TRAIN.TRANSFORMS]
    assert names[:2] == ["RandomResizedCrop", "RandomHorizontalFlip"]
    assert config.DATA.TRAIN.TRANSFORMS[0].size == 8
    assert not {"Resize", "CenterCrop"} & {*names}
    assert config.DATA.TEST.TRANSFORMS == frozen.config.DATA.TEST.TRANSFORMS
    assert config.DATA.TRAIN.BATCHSIZE_PER_REPLICA == 4  # that of the run
    mixing = config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS
    assert mixing.get("num_classes") == (3 if mixed else None)
    started.clear()
    many = ["--set", "DATA.TRAIN.BATCHSIZE_PER_REPLICA=64"]
    assert judge.main([*arguments, *many, "--trust-config"]) == 0
    assert started[-1].config.DATA.TRAIN.BATCHSIZE_PER_REPLICA == 64  # as it was said
    assert started[-1].engine_name == "finetune"
    assert {each.config.OPTIMIZER.num_iterations for each in started[1:3]} == {1000}
    if mixed:
        bare = [str(tmp_path / "train" / "a"), "--val", str(tmp_path / "val" / "a")]
        started.clear()
        assert notes == []
        assert judge.main([str(tmp_path / "run"), "--train", *bare, "--suite", "full"]) == 0
        assert [each.engine_name for each in started] == ["evaluate"]
        why = "left out, the images of TRAIN have no labels"
        assert notes == [f"linear_sweep, attentive_sweep: {why}", f"finetune: {why}"]


@pytest.mark.slow
def test_a_vit_is_judged_frozen_and_fine_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of the fine-tuned network is that of a run: reported, used, exported."""
    train(make_run(tmp_path / "run", **{**OTHER, **VIT}, OPTIMIZER__num_epochs=1))
    short = ["--set", "OPTIMIZER.num_epochs=1", "--set", "EVALUATE.PROTOCOLS=[]"]
    assert judge.main([str(tmp_path / "run"), *_images(tmp_path), "--suite", "full", *short]) == 0
    report = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert {each["features"] for each in report["scores"]} >= {"trained", "untrained"}
    assert {row["features"] for row in report["finetuned"]} == {"trained", "untrained"}
    assert [(row["protocol"], row["features"]) for row in report["swept"]] == [
        ("linear_sweep", "trained"), ("linear_sweep", "untrained"),
        ("attentive_sweep", "trained"), ("attentive_sweep", "untrained"),
    ]  # fmt: skip
    for row in report["swept"]:
        assert 0 <= row["metrics"]["top_1"] <= 100
        assert (tmp_path / "run" / row["folder"] / "swept.json").exists()
    tuned = str(tmp_path / "run" / report["finetuned"][0]["folder"])
    picture = str(tmp_path / "val" / "a" / "0.png")
    assert command(["report", tuned]) == 0
    capsys.readouterr()
    assert command(["predict", tuned, picture]) == 0
    said = capsys.readouterr().out
    assert [name for name in "abc" if f" {name}" in said] == [*"abc"], said
    assert command(["export", tuned, str(tmp_path / "out"), "--to", "state-dict"]) == 0


# ---- `sslengine judge` on data and weights that allow little: it says what it could not do, the
# rest is computed.


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


def _images_with_masks(root: Path, classes: dict[str, int]) -> Iterator[str]:
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
    images = [*_images_with_masks(tmp_path, classes)]
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
