"""Modules in the current folder, for the installed command: its sys.path does not have the folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import warm
from tests.config.recipes import recipe
from tests.export.subjects import TEST_VIEW, timm_vit
from tests.predictor.runs import changes, make_classifier, pictures
from tests.tail import slow_but

SCRIPT = "import sys\nfrom sslengine.command.front import main\nsys.exit(main())\n"
PLUGIN = """\
from sslengine.evaluate.label_free.metric import register_metric

open("imported", "w").close()


@register_metric("mean_norm", best="high")
def mean_norm(features):
    return features.norm(dim=1).mean().item()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images and a run."""
    folder = tmp_path_factory.mktemp("here")
    crop = [{"name": "RandomResizedCrop", "size": 32}, *TEST_VIEW[2:]]
    make_classifier(
        folder, DATA__TRAIN__TRANSFORMS=crop, DATA__TEST__TRANSFORMS=TEST_VIEW,
        MODEL__TRUNK=timm_vit(), MODEL__HEAD__PARAMS=[["mlp", {"dims": ["auto", 3]}]],
        OPTIMIZER__num_epochs=1,
    )  # fmt: skip
    return folder


@pytest.fixture
def here(trained: Path, tmp_path: Path) -> Path:
    """Also with a module, and with the command as pip installs it, in a folder of programs."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True, symlinks=True)
    (tmp_path / "my_metrics.py").write_text(PLUGIN)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sslengine").write_text(SCRIPT)
    return tmp_path


def command(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.run([sys.executable, str(here / "bin" / "sslengine"), *words], cwd=here)


def change_the_run(here: Path, **values: Any) -> None:
    file = here / "run" / "config.yaml"
    tree = yaml.safe_load(file.read_text())
    tree["config"] |= values
    file.write_text("# @package _global_\n" + yaml.safe_dump(tree))


VERBS = {
    "judge": ["run", "--train=images", "--val=images", "--workers=0", "--set",
              "EVALUATE.LABEL_FREE=[rankme,mean_norm]"],
    "embed": ["run", "images", "--out=rows.npy", "--workers=0"],
    "export": ["run", "exported"],
    "rank": ["run/checkpoints", "--workers=0"],
    "predict": ["run", "images/class0/00.png", "--nearest=0"],
    "replay": ["run"],
}  # fmt: skip
OWN_IMAGES = {"judge": ["run", "--workers=0"]}
TYPED = {verb: ["--set", "PLUGINS=[my_metrics]"] for verb in VERBS}
TYPED["replay"] = ["config.PLUGINS=[my_metrics]"]


@pytest.mark.parametrize("verb", slow_but(["embed"], VERBS))
def test_a_plugin_that_is_typed_is_found(verb: str, here: Path) -> None:
    done = command(here, verb, *VERBS[verb], *TYPED[verb])
    assert "cannot import" not in done.stderr
    assert (here / "imported").exists(), done.stderr
    assert done.returncode == 0, done.stderr
    if verb == "judge":
        report = json.loads((here / "run" / "evaluation.json").read_text())
        assert "mean_norm" in report["scores"][0]["label_free"]


@pytest.mark.parametrize("verb", slow_but(["judge"], VERBS))
def test_a_plugin_of_a_run_that_is_typed_again_is_trusted(verb: str, here: Path) -> None:
    """And what the run names besides is not."""
    change_the_run(here, PLUGINS=["my_metrics"])
    done = command(here, verb, *OWN_IMAGES.get(verb, VERBS[verb]), *TYPED[verb])
    assert done.returncode == 0, done.stderr
    assert (here / "imported").exists()


@pytest.mark.parametrize("verb", slow_but(["predict"], VERBS))
def test_a_plugin_of_a_run_is_found_with_trust_alone(verb: str, here: Path) -> None:
    change_the_run(here, PLUGINS=["my_metrics"])
    done = command(here, verb, *VERBS[verb])
    assert done.returncode == 2
    assert "config.PLUGINS.0: 'my_metrics' names Python code" in done.stderr
    assert not (here / "imported").exists()
    done = command(here, verb, *VERBS[verb], "--trust-config")
    assert "cannot import" not in done.stderr
    assert (here / "imported").exists(), done.stderr


METHOD = """\
from torch import nn

class NNCLR(nn.Module):
    def __init__(self, temperature: float = 0.1):
        super().__init__()
        self.temperature = temperature

    def forward(self, output, target):
        return output.square().mean() / self.temperature
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_with_the_name_of_pythons_own_it_is_not_run_in_a_loaders_worker(
    here: Path, method: str
) -> None:
    for name in ("multiprocessing", "random", "numpy"):
        (here / f"{name}.py").write_text("open('imported', 'w').close()\n")
    words = ["run", "images", "--out=rows.npy", "--workers=1"]
    chosen = ["--set", f"MULTI_PROCESSING_METHOD={method}"]
    script = [sys.executable, str(here / "bin" / "sslengine"), "embed", *words, *chosen]
    done = subprocess.run(script, cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (here / "imported").exists()


def test_what_is_installed_comes_first_beside_an_untrusted_run(here: Path) -> None:
    """A module of the folder cannot take the place of one that the engine imports later."""
    (here / "my_metrics.py").write_text(f"{PLUGIN}\nimport sys\nprint('last', sys.path[-1:])\n")
    done = command(here, "predict", *VERBS["predict"], *TYPED["predict"])
    assert "last ['']" in done.stdout, done.stderr


# ---- A run of a method of the user's own, in every verb that opens its folder, without --trust-
# config.


VERBS_OF_A_RUN = {
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
def copied_project(project: Path, tmp_path: Path) -> Path:
    """Another folder with copies of the run and the images, and not of the method."""
    for name in ("run", "images", "bin"):
        shutil.copytree(project / name, tmp_path / name, symlinks=True)
    return tmp_path


@pytest.mark.parametrize("verb", slow_but(["predict", "replay"], VERBS_OF_A_RUN))
def test_no_flag_is_needed(verb: str, copied_project: Path) -> None:
    done = command(copied_project, verb, *VERBS_OF_A_RUN[verb])
    assert done.returncode == 0, done.stderr


def test_a_method_that_was_edited_is_told(project: Path, copied_project: Path) -> None:
    method = project / "my_method.py"
    try:
        method.write_text(METHOD.replace("mean()", "mean() * 2"))
        done = command(copied_project, "replay", *VERBS_OF_A_RUN["replay"])
    finally:
        method.write_text(METHOD)
    assert done.returncode == 0, done.stderr
    assert "other code than when the checkpoint was written" in done.stdout + done.stderr
