"""`sslengine judge --suite`: what is trained with labels, by which recipe, and what it is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sslengine.command import judge
from sslengine.command.front import main as command
from sslengine.config.resolve import Resolved
from sslengine.engines.train import train
from tests.data.pictures import write_picture
from tests.engines.runs import make_run

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
