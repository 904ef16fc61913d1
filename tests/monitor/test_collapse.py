"""Runs that die in the ways of these methods: what is found, and the key that is named."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.command.front import main as command
from sslengine.launch.cli import main
from sslengine.monitor.collapse import ADVICE, NOT_FINITE, find_signs
from sslengine.precision import Precision
from tests.teachers import needed

TINY = {
    "DATA.NUM_DATALOADER_WORKERS": "0", "DATA.TRAIN.BATCHSIZE_PER_REPLICA": "8",
    "DATA.TRAIN.DATA_LIMIT": "32", "OPTIMIZER.num_epochs": "2", "LOG_FREQUENCY": "1000",
    "MODEL.TRUNK.VISION_TRANSFORMERS.NUM_LAYERS": "1",
}  # fmt: skip
GREY = {
    "DATA.TRAIN.DATA_SOURCES": "[synthetic]",
    "DATA.TRAIN.TRANSFORMS": "[{name:ImgPilToMultiCrop,total_num_crops:4,size_crops:[48,24],"
    "num_crops:[2,2],crop_scales:[[0.5,1.0],[0.15,0.5]]},{name:ToTensor}]",
}
NEVER_FROZEN = {"MODEL.TEMP_FROZEN_PARAMS_ITER_MAP": "[]"}


def rate(value: float) -> dict[str, str]:
    return {"OPTIMIZER.param_schedulers.lr": f"{{name: constant, value: {value}}}"}


def train(folder: Path, recipe: str, **of_loss: Any) -> int:
    """Keys with dots are of `config`, others of the method."""
    of = {key if "." in key else f"LOSS.{recipe}_loss.{key}": v for key, v in of_loss.items()}
    values = {**TINY, **of, "CHECKPOINT.DIR": folder}
    given = [f"config.{key}={value}" for key, value in values.items()]
    return main([f"config=quickstart/{recipe}", *needed(recipe), *given])


def advice(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the doctor finds: the name of each finding, and what it advises."""
    capsys.readouterr()
    status = command(["doctor", str(folder), "--json"])
    told = json.loads(capsys.readouterr().out)
    count = next(each["value"] for each in told if each["what"] == "signs of collapse")
    assert status == int(count > 0)
    *others, verdict = told
    if "is not finite" in verdict["value"]:
        others.append({**verdict, "what": "not finite"})
    return {each["what"]: each["advice"] for each in others if each["advice"]}


# The recipe, what is changed of it, and what is found.
DEATHS: dict[str, tuple[str, dict[str, Any], str]] = {
    "warm": ("dino", {"teacher_temp_min": 1.0, "teacher_temp_max": 1.0}, "uniform targets"),
    "no centre": ("dino", {"ema_center": 1.0, "momentum": 0.9, **rate(0.03), **NEVER_FROZEN,
                           "OPTIMIZER.num_epochs": 8}, "one prototype"),
    "flat": ("capi", {"target_temp": 10}, "uniform targets"),
    # Of images with little contrast tokens are hardly more than their positions.
    "positions": ("capi", {"positionwise": False, "DATA.TRAIN.TRANSFORMS.3.std": [25, 25, 25]},
                  "targets without images"),
    "few rows": ("dinov2", {"output_dim": 4096},
                 "more prototypes than rows"),
    "one image per rank": ("dinov2", {"DATA.TRAIN.BATCHSIZE_PER_REPLICA": 1,
                                      "DATA.TRAIN.DATA_LIMIT": 4}, "KoLeo"),
    "nothing hidden": ("dinov2", {"DATA.TRAIN.COLLATE_FUNCTION_PARAMS.shares": [0, 0]},
                       "no hidden patches"),
    "copies of an image": ("dinov2", GREY, "equal images"),
    "equal features": ("msn", {"momentum": 0, **rate(1.0)}, "equal images"),
    "equal patches": ("ijepa", {"momentum": 0, "predictor_layers": 1, **rate(1.0)},
                      "equal patches"),
    "fewer dimensions": (
        "simsiam",
        {"OPTIMIZER.name": "sgd", "OPTIMIZER.num_epochs": 8, "DATA.TRAIN.DATA_LIMIT": 64,
         "DATA.TRAIN.BATCHSIZE_PER_REPLICA": 16, "OPTIMIZER.param_schedulers.lr":
         "{name: linear, start_value: 0.0, end_value: 6.0}"}, "fewer dimensions",
    ),
    "cold": ("dino", {"teacher_temp_min": 1e-5, "teacher_temp_max": 1e-5}, "one-hot targets"),
    "too sharp to be numbers": ("msn", {"LOSS.msn_loss.temperature": 1e-4}, "not finite"),
    "rate": ("simclr", {**rate(1e30), "OPTIMIZER.name": "sgd"}, "not finite"),
}  # fmt: skip


QUICK = ("no centre",)
WAYS = [pytest.param(way, marks=() if way in QUICK else pytest.mark.slow) for way in DEATHS]


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_dies(way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, of_loss, what = DEATHS[way]
    status = train(tmp_path / "run", recipe, **of_loss)
    assert status == int(what == "not finite")
    assert f"{what}: " in "".join(capsys.readouterr())  # in the run
    assert what in advice(tmp_path / "run", capsys)


DESTROY = """
from sslengine.hooks.events import Hook

class Destroy(Hook):
    def on_update(self, task):
        *_, last = [each for each in task.base_model.trunk.modules() if hasattr(each, "running_var")]
        for each in task.base_model.trunk.modules():
            if getattr(each, "num_features", 0) == last.num_features:
                each.weight.data[LEFT:] = each.bias.data[LEFT:] = 0
"""
BRIEF = {"DATA.TRAIN.BATCHSIZE_PER_REPLICA": "32", "DATA.TRAIN.DATA_LIMIT": "64",
         "OPTIMIZER.num_epochs": "1"}  # fmt: skip


def destroys(left: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook destroy:Destroy leaves so many channels of the trunk."""
    (folder / "destroy.py").write_text(DESTROY.replace("LEFT", str(left)))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "destroy", raising=False)


def test_weights_that_are_collapsed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    destroys(1, tmp_path, monkeypatch)
    assert (
        train(tmp_path / "dead", "simclr", **BRIEF, **{"HOOKS.EXTRA": "['destroy:Destroy']"}) == 0
    )
    assert advice(tmp_path / "dead", capsys)["equal images"] == ADVICE["equal images"]
    more = {**BRIEF, "MODEL.WEIGHTS_INIT.PARAMS_FILE": str(tmp_path / "dead"), **rate(1e-6)}
    assert train(tmp_path / "run", "simclr", **more) == 0
    assert advice(tmp_path / "run", capsys)["equal images"] == ADVICE["from weights"]


@pytest.mark.slow
def test_copies_among_the_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red ones and blue ones: the images differ, and the nearest ones do not."""
    colours = np.array([[200, 0, 0], [0, 0, 200]] * 16, dtype=np.uint8)
    np.save(tmp_path / "images.npy", np.tile(colours[:, None, None], (1, 48, 48, 1)))
    of_data = {"DATA.TRAIN.DATA_SOURCES": "[array_file]",
               "DATA.TRAIN.DATA_PATHS": [str(tmp_path / "images.npy")]}  # fmt: skip
    assert train(tmp_path / "run", "dinov2", **{**GREY, **of_data}) == 0
    assert advice(tmp_path / "run", capsys)["KoLeo"] == ADVICE["KoLeo"]


@pytest.fixture
def fp16_anywhere(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """fp16 with a loss scale on the CPU too, where the engine refuses it because it is slow."""
    monkeypatch.setattr(
        "sslengine.engine.build.build_precision",
        lambda choice, device, scaler, where: Precision(device, torch.float16, scaler),
    )
    return {"MACHINE.PRECISION": "fp16"}


@pytest.mark.slow
def test_images_that_fp16_cannot_hold(
    fp16_anywhere: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not normalised: the values of pixels reach 500,000, fp16 ends at 65,504. KoLeo is NaN."""
    large = {"DATA.TRAIN.TRANSFORMS.4.std": [1e-6] * 3}
    assert train(tmp_path / "run", "dinov2", **large, **fp16_anywhere) == 1
    text = "".join(capsys.readouterr())
    assert "is not finite" in text
    assert ADVICE[NOT_FINITE] in text
    assert ADVICE[NOT_FINITE] in advice(tmp_path / "run", capsys)["not finite"]


@pytest.mark.slow
def test_gradients_that_fp16_cannot_hold(
    fp16_anywhere: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss is finite; each step is left out, and the loss scale is halved."""
    large = {"koleo_weight": 1e8, "MODEL.AMP_PARAMS.GRAD_SCALER.init_scale": 16}
    assert train(tmp_path / "run", "dinov2", **fp16_anywhere, **large) == 0
    assert "not finite: the loss scale is down at" in "".join(capsys.readouterr())
    assert advice(tmp_path / "run", capsys)["not finite"] == ADVICE[NOT_FINITE]


LIVING = ("ibot", "dino", "msn", "capi", "dinov2", "ijepa", "dinov3", "data2vec", "simmim",
          "distillation")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("recipe", LIVING)
def test_a_run_that_lives(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers = {"top_layers": 1} if recipe == "data2vec" else {}  # TINY has one
    assert train(tmp_path / "run", recipe, **layers) == 0
    assert advice(tmp_path / "run", capsys) == {}


def test_the_run_is_ended_before_its_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warm = {"teacher_temp_min": 1.0, "teacher_temp_max": 1.0}
    assert train(tmp_path / "run", "dino", **warm, **{"HOOKS.STOP_ON_COLLAPSE": "true"}) == 1
    text = capsys.readouterr().err
    assert "this run has collapsed:\n  uniform targets: " in text
    assert not list((tmp_path / "run" / "checkpoints").glob("*.torch"))
    assert train(tmp_path / "no", "dino", **{
        "HOOKS.STOP_ON_COLLAPSE": "true", "HOOKS.COLLAPSE_SIGNS": "false"}) != 0  # fmt: skip
    assert "STOP_ON_COLLAPSE: needs COLLAPSE_SIGNS" in capsys.readouterr().err


@pytest.mark.slow
def test_all_ranks_end_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    warm = {"teacher_temp_min": 1.0, "teacher_temp_max": 1.0, "HOOKS.STOP_ON_COLLAPSE": "true"}
    ranks = {"DISTRIBUTED.NUM_PROC_PER_NODE": "2", "MACHINE.DEVICE": "cpu"}
    assert train(tmp_path / "run", "dino", **warm, **ranks) == 1
    text = capfd.readouterr().err
    assert text.count("this run has collapsed:\n  uniform targets: ") == 1
    assert "Traceback" not in text
    assert not list((tmp_path / "run" / "checkpoints").glob("*.torch"))


def _config(**options: Any) -> dict[str, Any]:
    loss = {"output_dim": 64, "momentum": 0.99, "targets": "center", **options}
    return {"LOSS": {"name": "any_loss", "any_loss": loss}}


PATCH_ENTROPY, PATCH_USED = "loss.patch_teacher_entropy", "loss.patch_prototypes_used"
ENTROPY, USED, KOLEO = "loss.teacher_entropy", "loss.prototypes_used", "loss.koleo"
TRUNK_RANK, TRUNK_ROWS = "trunk_rank", "trunk_rows"
STARTED = {TRUNK_ROWS: 64.0, "start_rank": 20.0, "start_rows": 64.0}


@pytest.mark.parametrize(
    ("ends", "what", "cause"),
    [
        ([{"loss_scale": 2.0**-3}], "not finite", ""),
        ([{"loss_scale": 2.0**10}], "", ""),
        ([{USED: 40.0}, {USED: 8.0}], "fewer prototypes", ""),
        ([{USED: 40.0}, {USED: 11.0}], "", ""),
        ([{ENTROPY: 4.1, USED: 60.0}], "", ""),
        ([{TRUNK_RANK: 20.0}, {TRUNK_RANK: 4.9}], "fewer dimensions", ""),
        ([{TRUNK_RANK: 20.0}, {TRUNK_RANK: 5.1}], "", ""),
        ([{TRUNK_RANK: 4.9, **STARTED}], "fewer dimensions", ""),
        ([{TRUNK_RANK: 20.0, TRUNK_ROWS: 64}, {TRUNK_RANK: 4.9, **STARTED, "start_rank": 1.2}],
         "fewer dimensions", ""),
        ([{TRUNK_RANK: 5.1, **STARTED}], "", ""),
        ([{TRUNK_RANK: 4.9, **STARTED, TRUNK_ROWS: 16}], "", ""),
        ([{PATCH_USED: 40.0}, {PATCH_USED: 8.0}], "fewer patch prototypes", "fewer prototypes"),
        ([{TRUNK_RANK: 1.1}], "equal images", ""),
        ([{TRUNK_RANK: 1.1, TRUNK_ROWS: 8}], "equal images", ""),
        ([{TRUNK_RANK: 1.1, **STARTED}], "equal images", ""),
        ([{TRUNK_RANK: 1.1, **STARTED, "start_rank": 1.2}], "equal images", "from weights"),
        ([{TRUNK_RANK: 1.1, TRUNK_ROWS: 2, USED: 1.0}], "", ""),
        ([{TRUNK_RANK: 40.0, TRUNK_ROWS: 64}, {TRUNK_RANK: 7.0, TRUNK_ROWS: 8}], "", ""),
        ([{ENTROPY: 0.0, USED: 40.0}], "one-hot targets", ""),
        ([{PATCH_ENTROPY: 0.01, PATCH_USED: 40.0}], "one-hot patch targets", "one-hot targets"),
        ([{ENTROPY: 0.5, USED: 40.0}], "", ""),
        ([{KOLEO: math.nan, "loss_finite": 0.0}], "not finite", ""),
        ([{TRUNK_RANK: 1.1, "input_std": 0.0}], "equal images", "copies"),
        ([{KOLEO: 0.0}], "KoLeo", "no neighbour"),
        ([{KOLEO: math.inf}], "KoLeo", ""),
        ([{KOLEO: 13.0}], "", ""),
        ([{"loss.image_information": 0.01}], "targets without images", ""),
        ([{"loss.image_information": 0.03}], "", ""),
        ([], "", ""),
    ],
)  # fmt: skip
def test_rules(ends: list[dict[str, float]], what: str, cause: str) -> None:
    found = [(each.what, each.advice) for each in find_signs(ends, _config())]
    assert found == ([(what, ADVICE[cause or what])] if what else [])


def test_a_method_with_options_of_its_own() -> None:
    """K by another name, which comes before."""
    config = _config(num_prototypes=1024)
    assert list(find_signs([{ENTROPY: 4.2}], config)) == []  # more than ln 64
    (found,) = find_signs([{ENTROPY: 6.93}], config)
    assert "ln K is 6.931" in found.value


def _assigned(rows: int, entropy: float) -> list[str]:
    config = _config(output_dim=4096, targets="sinkhorn", sinkhorn_iterations=3)
    config["DATA"] = {"TRAIN": {"BATCHSIZE_PER_REPLICA": rows // 4}}
    config["DISTRIBUTED"] = {"NUM_NODES": 1, "NUM_PROC_PER_NODE": 2}
    return [str(each) for each in find_signs([{ENTROPY: entropy}], config)]


def test_rows_of_all_ranks_for_sinkhorn() -> None:
    """Half of ln 4096 is the least entropy at 64 rows."""
    assert _assigned(64, 8.0) == _assigned(32, 4.0) == []
    (spread,), (uniform,) = _assigned(32, 5.0), _assigned(32, 8.317)
    assert spread.startswith("more prototypes than rows: a target is spread over 148 of 4096.")
    assert uniform.startswith("uniform targets: ")
