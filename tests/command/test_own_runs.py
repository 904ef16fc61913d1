"""A run of a method of the user's own, in every verb that opens its folder, without --trust-config."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.command.test_modules_here import METHOD, SCRIPT, command
from tests.config.recipes import recipe
from tests.export.subjects import TEST_VIEW, timm_vit
from tests.predictor.runs import changes, pictures
from tests.tail import slow_but

VERBS = {
    "judge": ["run", "--workers=0"],
    "embed": ["run", "images", "--out=rows.npy", "--workers=0"],
    "export": ["run", "exported"],
    "rank": ["run/checkpoints", "--workers=0"],
    "predict": ["run", "images/class0/00.png", "--nearest=0"],
    "replay": ["run"],
    "explain": ["config=run/config", "--config-dir=."],
    "train": ["config=config", "--config-dir=run", "config.OPTIMIZER.num_epochs=3"],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's, where a run was trained whose loss is a module here."""
    here = tmp_path_factory.mktemp("project")
    for name in ("bin", "configs"):
        (here / name).mkdir()
    (here / "bin" / "sslengine").write_text(SCRIPT)
    (here / "my_method.py").write_text(METHOD)
    pictures(here / "images")
    crop = [{"name": "RandomResizedCrop", "size": 32}, *TEST_VIEW[2:]]
    tree = recipe(**changes(
        here / "images", DATA__TRAIN__TRANSFORMS=crop, DATA__TEST__TRANSFORMS=TEST_VIEW,
        MODEL__TRUNK=timm_vit(), MODEL__HEAD__PARAMS=[["mlp", {"dims": ["auto", 3]}]],
        LOSS={"name": "my_method:NNCLR", "NNCLR": {"temperature": 0.3}},
        CHECKPOINT__CHECKPOINT_FREQUENCY=1, OPTIMIZER__param_schedulers__lr__start_value=0.001,
    ))  # fmt: skip
    text = "# @package _global_\n" + yaml.safe_dump({"config": tree})
    (here / "configs" / "tiny.yaml").write_text(text)
    done = command(here, "train", "config=tiny", "config.CHECKPOINT.DIR=run")
    assert done.returncode == 0, done.stderr
    (here / "run" / "checkpoints" / "model_final_checkpoint_phase1.torch").unlink()
    return here


@pytest.fixture
def here(project: Path, tmp_path: Path) -> Path:
    """Another folder with copies of the run and the images, and not of the method."""
    for name in ("run", "images", "bin"):
        shutil.copytree(project / name, tmp_path / name, symlinks=True)
    return tmp_path


@pytest.mark.parametrize("verb", slow_but(["predict", "replay"], VERBS))
def test_no_flag_is_needed(verb: str, here: Path) -> None:
    done = command(here, verb, *VERBS[verb])
    assert done.returncode == 0, done.stderr


def test_a_method_that_was_edited_is_told(project: Path, here: Path) -> None:
    method = project / "my_method.py"
    try:
        method.write_text(METHOD.replace("mean()", "mean() * 2"))
        done = command(here, "replay", *VERBS["replay"])
    finally:
        method.write_text(METHOD)
    assert done.returncode == 0, done.stderr
    assert "other code than when the checkpoint was written" in done.stdout + done.stderr
