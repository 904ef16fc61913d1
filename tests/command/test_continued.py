"""`--recipe METHOD/continued`: fresh heads on trained weights, at first with a frozen trunk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sslengine.command import recipes
from sslengine.command.front import main
from sslengine.config.resolve import resolve
from tests.command.photos import SMALL, config_of, write_photos
from tests.tail import slow_but

A_VIT = "--model=vit_small_patch16_224", "--pretrained"
RUN = ["--model", "resnet10t", *SMALL]


def weights(run: Path) -> dict[str, dict[str, Tensor]]:
    kept = torch.load(run / "checkpoints" / "checkpoint.torch", weights_only=False)
    return kept["classy_state_dict"]["base_model"]["model"]


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", str(photos), "--method=simclr", *RUN, "--out", str(out)]) == 0
    return out


def continued(trained: Path, photos: Path, out: Path, *arguments: str) -> Path:
    recipe = ["--recipe=simclr/continued", "--weights", str(trained), "--seed=7"]
    assert main(["train", str(photos), *recipe, *RUN, *arguments, "--out", str(out)]) == 0
    return out


def moved(before: dict[str, Tensor], after: dict[str, Tensor], part: str = "") -> float:
    """The largest change of the weights of layers, those of `part` in their names."""
    names = [name for name in before if part in name and name.endswith("weight")]
    return max(float((before[name] - after[name]).abs().max()) for name in names)


def test_frozen_at_first(trained: Path, photos: Path, tmp_path: Path) -> None:
    before = weights(trained)
    after = weights(continued(trained, photos, tmp_path / "run", "--freeze-trunk=1"))
    assert moved(before["trunk"], after["trunk"]) == 0
    # The heads are others: of another seed, not the file's.
    assert moved(before["heads"], after["heads"]) > 0.01


@pytest.mark.slow
def test_a_run_whose_prototypes_were_frozen_is_judged_by_heads_that_are_not(
    photos: Path, tmp_path: Path
) -> None:
    """What a method's config freezes by name is not there."""
    run = tmp_path / "run"
    assert main(["train", str(photos), "--method=dino", *RUN, "--out", str(run)]) == 0
    assert "EPOCH_MAP" in (run / "config.yaml").read_text()
    assert main(["judge", str(run), f"--train={photos}", f"--val={photos}"]) == 0
    labelled = (
        f"{{DATA_SOURCES: [disk_folder], DATA_PATHS: [{photos}], LABEL_SOURCES: [disk_folder],"
    )
    views = "TRANSFORMS: [{name: Resize, size: [32, 32]}, {name: ToTensor}]}"
    split = [f"config.DATA.{each}={labelled} {views}" for each in ("TRAIN", "TEST")]
    for benchmark in ("finetune=cnn", "sweep=linear"):
        added = ["config=photos/dino", f"config.CHECKPOINT.DIR={run}", *split]
        config = resolve([*added, f"+config/benchmark/{benchmark}"]).config
        assert not config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP


def test_judged_is_what_it_became(trained: Path, photos: Path, tmp_path: Path) -> None:
    """Not the weights that it started from, which may be gone; unless --set names them."""
    start = tmp_path / "start"
    shutil.copytree(trained, start)
    run = continued(start, photos, tmp_path / "run")
    judge = ["judge", str(run), f"--train={photos}", f"--val={photos}"]
    file = f"--set=MODEL.WEIGHTS_INIT.PARAMS_FILE={start}"
    assert main([*judge, file]) == 0
    assert _judged(run).startswith(str(start))
    shutil.rmtree(start)
    assert main(judge) == 0
    assert _judged(run).startswith(str(run / "checkpoints"))


def test_another_head_is_another_model(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the recipe's width is `auto`."""
    other = "--set=MODEL.HEAD.PARAMS.0.1.use_relu=false"
    assert main(["train", str(photos), "--method=simclr", *RUN, other, "--out", str(trained)]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "another model or method" in said
    assert "config.MODEL.HEAD.PARAMS" in said


def _judged(run: Path) -> str:
    report = json.loads((run / "evaluation.json").read_text())
    found = {each["about"]["weights"] for each in report["scores"] if each["features"] == "trained"}
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("method", slow_but(["dino", "msn", "moco"], recipes.methods()))
def test_a_warm_up_of_the_method_ends_in_the_first_half(method: str, photos: Path) -> None:
    """Recipes have 100 epochs or more, a continued one 30."""
    config = config_of(str(photos), f"--recipe={method}/continued", *A_VIT)
    options = config.LOSS.get(config.LOSS.name) or {}
    assert options.get("teacher_temp_warmup_epochs", 0) <= config.OPTIMIZER.num_epochs / 2


# ---- DATA_LIMIT_SAMPLING through the command: what a run used of its images, and lists of them.


SAMPLING = "DATA.TRAIN.DATA_LIMIT_SAMPLING"
RUN_SMALL = ["--method=simclr", "--model=resnet10t", *SMALL]


@pytest.mark.slow
def test_other_images_are_used_as_a_whole(tmp_path: Path) -> None:
    """By embed and judge: what a run was trained on is no choice among them."""
    photos, run = write_photos(tmp_path / "photos"), tmp_path / "run"
    assert (
        main(["train", str(photos), *RUN_SMALL, f"--set={SAMPLING}.SHARE=0.5", f"--out={run}"]) == 0
    )
    rows = tmp_path / "rows.npz"
    assert main(["embed", str(run), str(photos), "--workers=0", f"--out={rows}"]) == 0
    with np.load(rows) as held:
        assert sorted(held["paths"]) == sorted(map(str, photos.rglob("*.png")))
    data = [f"--train={photos}", f"--val={photos}", "--set=EVALUATE.LABEL_FREE=[rankme]"]
    assert main(["judge", str(run), *data]) == 0
    (images, *_) = (each["about"]["images"] for each in
                    json.loads((run / "evaluation.json").read_text())["scores"])  # fmt: skip
    assert images == {"train": 16, "test": 16}
    # Unless --set says it.
    few = [f"--set={SAMPLING}.SHARE=0.25", "--workers=0", f"--out={tmp_path}/few.npy"]
    assert main(["embed", str(run), str(photos), *few]) == 0
    assert np.load(tmp_path / "few.npy").shape[0] == 4
