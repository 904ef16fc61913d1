"""Many mistakes, and what the command says of each: what, where, what was expected.

Each row is the real command line on a small run. The status, parts of the message, and how far it
may have come: `config`, before torch is needed or anything is launched; `check`, before any data is
read, a process started or a folder made; `run`, where something had to be read to know it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from PIL import Image

from sslengine.launch import local, preflight
from sslengine.launch.cli import main
from tests.config.recipes import recipe

CONFIG, CHECK, RUN = "config", "check", "run"


class Row(NamedTuple):
    arguments: str  # behind config=tiny, if they name no config themselves
    said: tuple[str, ...]
    phase: str = CONFIG
    status: int = 2

    def __str__(self) -> str:
        return re.sub(r"\W+", "-", self.arguments.replace("config.", ""))[-70:] or "nothing"


def row(arguments: str, *said: str, phase: str = CONFIG, status: int = 2) -> Row:
    return Row(arguments, said, phase, status)


TRANSFORMS = "config.DATA.TRAIN.TRANSFORMS"
LR = "config.OPTIMIZER.param_schedulers.lr"
PATHS = "config.DATA.TRAIN.DATA_PATHS"
FOLDER = f"config.DATA.TRAIN.DATA_SOURCES=[disk_folder] {PATHS}"
LISTED = f"config.DATA.TRAIN.DATA_SOURCES=[disk_filelist] {PATHS}"

COMMAND_LINE = [
    row("config=tyni", "config=tyni: there is no such config file", "'tiny'"),
    row("config=", "config=", "expected the name of a file"),
    row("config=tiny nonsense", "'nonsense' is not KEY=VALUE"),
    row("config=tiny config.A=[1", "command line", "Write KEY=VALUE"),
    row("config=tiny config=overlay", "config=... selects one file"),
    row("config=tiny +config/nowhere=x", "+config/nowhere=x: there is no such config file"),
    row("config=tiny --config-dir nowhere", "--config-dir nowhere: there is no such folder"),
    row("SEED_VALUE=1", "SEED_VALUE: unknown key. Did you mean 'config.SEED_VALUE'"),
    row("config.SEED=1", "config.SEED: unknown key. Did you mean 'SEED_VALUE'"),
    row("engine_name=trian", "engine_name", "'train'"),
    row("~config.SEED_VALUE", "~config.SEED_VALUE: nothing can be deleted"),
    row(f"{TRANSFORMS}.9.size=3", f"{TRANSFORMS}.9: the list has 4 entries"),
    row("config.SEED_VALUE.x=1", "config.SEED_VALUE: expected int"),
]

FILES = [
    row("config=latin", "latin.yaml: not UTF-8 text"),
    row("config=broken", "broken", "not valid YAML"),
    row("config=number", "config: expected", "number.yaml"),
    row("config=circle", "config=circle", "circle"),
    row("config=alias", "alias.yaml: an alias (*NAME) is inside the value that it refers to"),
    row("config=list_at_top", "list_at_top"),
    row("config=two_lengths", "the length of the run is given twice"),
    row("config=interpolated", "interpolation", "NOT_THERE"),
]

VALUES = [
    row("config.OPTIMIZER.num_epoch=3", "config.OPTIMIZER.num_epoch: unknown key", "'num_epochs'"),
    row("config.OPTIMIZER.num_epochs=many", "config.OPTIMIZER.num_epochs: expected"),
    row("config.OPTIMIZER.num_epochs=null", "config.OPTIMIZER.num_epochs: the run has no length"),
    row("config.OPTIMIZER.accumulate=0", "config.OPTIMIZER.accumulate: expected"),
    row("config.OPTIMIZER.weight_decay=nan", "OPTIMIZER.weight_decay: expected"),
    row("config.OPTIMIZER.betas=[0.9]", "config.OPTIMIZER.betas: expected"),
    row("config.OPTIMIZER.name=agd", "config.OPTIMIZER.name", "'sgd'"),
    row("config.OPTIMIZER.args={x: 1}", "config.OPTIMIZER.args.x: ", "takes no such argument"),
    row(f"{LR}.name=cosin", "'cosin'", "'cosine'"),
    row(f"{LR}.start_value=nan", f"{LR}.start_value: expected"),
    row(f"{LR}.name=multistep {LR}.values=[1,2] {LR}.milestones=[3,4]", f"{LR}", "milestones"),
    row(f"{LR}.update_interval=minute", f"{LR}.update_interval: expected"),
    row("config.TEST_EVERY_NUM_ITERATIONS=3", "config.TEST_EVERY_NUM_ITERATIONS: requires TEST_MODEL"),
    row("config.CHECKPOINT.BEST.METRIC=loss", "config.CHECKPOINT.BEST.METRIC: expected"),
    row("config.HOOKS.EMA_MODEL.SAVE_EMA_MODEL=true", "EMA_MODEL.SAVE_EMA_MODEL: expected"),
    row("config.HOOKS.EARLY_STOPPING.MONITOR=loss", "config.HOOKS.EARLY_STOPPING.MONITOR: "),
    row("config.HOOKS.EXTRA=[nohook]", "config.HOOKS.EXTRA.0", "there is no hook named 'nohook'"),
    row("config.HOOKS.EXTRA=[os:getcwd]", "config.HOOKS.EXTRA.0: 'os:getcwd' cannot be used as hook"),
    row("config.HOOKS.EXTRA=[{x: 1}]", "config.HOOKS.EXTRA.0: this entry has no `name`"),
    row("config.HOOKS.WRITERS=[jsn]", "config.HOOKS.WRITERS.0", "'json'"),
    row("config.METERS.names=[acuracy_list_meter]", "config.METERS.names", "accuracy_list_meter"),
    row("config.PLUGINS=[no_such_module]", "config.PLUGINS.0: importing 'no_such_module'"),
    row("config.PLUGINS=[plugin_that_raises]", "config.PLUGINS.0: importing 'plugin_that_raises'",
        "ZeroDivisionError", "plugin_that_raises.py, line 2"),
]  # fmt: skip

METHODS_AND_MODELS = [
    row("config.LOSS.name=simclr_info_nse_loss", "config.LOSS.name", "'simclr_info_nce_loss'"),
    row("config.LOSS.name=''", "config.LOSS.name: standard_train_step requires a loss"),
    row("config.LOSS.name=os:getcwd", "config.LOSS.name: 'os:getcwd' cannot be used as loss"),
    row("config.LOSS.name=collections:OrderedDict", "OrderedDict' cannot be used as loss", "derives from Module"),
    row("config.LOSS.name=torch.nn:Los", "config.LOSS.name: module 'torch.nn' has no 'Los'"),
    row("config.LOSS.simclr_info_nce_loss.temprature=1", "temprature: unknown key", "'temperature'"),
    row("config.LOSS.simclr_info_nce_loss.temperature=0", "temperature: expected"),
    row("config.LOSS.name=swav_loss", "config.MODEL.HEAD.PARAMS", "swav_head"),
    row("config.TRAINER.TRAIN_STEP_NAME=standard_train_stp", "config.TRAINER.TRAIN_STEP_NAME",
        "'standard_train_step'"),
    row("config.MODEL.TRUNK.NAME=resnett", "config.MODEL.TRUNK.NAME", "'resnet'"),
    row("config.MODEL.TRUNK.NAME=os:getcwd", "config.MODEL.TRUNK.NAME: 'os:getcwd' cannot be used as trunk"),
    row("config.MODEL.TRUNK.RESNETS.WIDTH_MULTIPLIER=0", "leaves a layer without channels"),
    row("config.MODEL.TRUNK.VISION_TRANSFORMERS.NUM_HEADS=7", "7 heads do not divide"),
    row("config.MODEL.HEAD.PARAMS=[[mlpp,{dims: [32,8]}]]", "config.MODEL.HEAD.PARAMS", "'mlp'"),
    row("config.MODEL.HEAD.PARAMS=[[mlp,{dimms: [32,8]}]]", "dimms: ", "takes no such argument"),
    row("config.MODEL.HEAD.PARAMS=[[mlp,{dims: [32]}]]", "two or more widths", phase=CHECK),
    row("config.MODEL.HEAD.PARAMS=[[mlp,{dims: [31,8]}]]", "config.MODEL.HEAD.PARAMS", "31",
        "(4, 32)", phase=CHECK),
    row("config.MODEL.HEAD.PARAMS=[[mlp,{dims: [32,8]}],[mlp,{dims: [9,8]}]]",
        "config.MODEL.HEAD.PARAMS", "width 9", phase=CHECK),
    row("config.MODEL.MULTI_INPUT_HEAD_MAPPING=[[data,[res9]]]", "no feature 'res9'", "'res5'",
        phase=CHECK),
    row("config.MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON=true config.MODEL.FEATURE_EVAL_SETTINGS."
        "LINEAR_EVAL_FEAT_POOL_OPS_MAP=[[res9,[Identity,[]]]]", "no feature 'res9'", phase=CHECK),
    row("config.MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON=true config.MODEL.FEATURE_EVAL_SETTINGS."
        "LINEAR_EVAL_FEAT_POOL_OPS_MAP=[[res5,[MeanPool,[]]]]", "there is no pooling 'MeanPool'"),
    row("config.MODEL.NON_TRAINABLE_PARAMS=[trunk.nothing]", "config.MODEL.NON_TRAINABLE_PARAMS",
        "trunk.nothing", phase=CHECK),
    row("config.MODEL.WEIGHTS_INIT.PARAMS_FILE=not_there.torch", "there is no file",
        "not_there.torch"),
    row("config.MODEL.WEIGHTS_INIT.PARAMS_FILE=s3://mine/vit.torch", "download the file"),
    row("config.MODEL.WEIGHTS_INIT.PARAMS_FILE=text.torch", "text.torch", phase=RUN, status=1),
]  # fmt: skip

DATA = [
    row(f"{TRANSFORMS}.1.size=ninety", f"{TRANSFORMS}.1", "RandomResizedCrop", phase=CHECK),
    row(f"{TRANSFORMS}.1.name=RandomResizeCrop", f"{TRANSFORMS}.1", "'RandomResizedCrop'"),
    row(f"{TRANSFORMS}.1.name=RandomCrop {TRANSFORMS}.1.size=4096", f"{TRANSFORMS}.1", "larger than",
        phase=CHECK),
    row(f"{TRANSFORMS}=[{{size: 3}}]", f"{TRANSFORMS}.0: this entry has no `name`"),
    row(f"{TRANSFORMS}.3={{name: Normalize, mean: [0,0,0], std: [1,1,1]}}", f"{TRANSFORMS}.3",
        "Normalize", phase=CHECK),
    row(f"config.DATA.TRAIN.IMAGE_MODE=L config.DATA.TRAIN.DATA_SOURCES=[disk_folder] "
        f"{PATHS}=[images] +{TRANSFORMS}.x=1", f"{TRANSFORMS}.x"),
    row(f"config.DATA.TRAIN.IMAGE_MODE=L {FOLDER}=[images] {TRANSFORMS}=[{{name: ToTensor}},"
        "{name: Normalize, mean: [0,0,0], std: [1,1,1]}] config.LOSS.name=CrossEntropyLoss "
        "config.DATA.TRAIN.COLLATE_FUNCTION=default_collate",
        f"{TRANSFORMS}.1 (Normalize)", "IMAGE_MODE is L", phase=CHECK),
    row("config.DATA.TRAIN.COLLATE_FUNCTION=simclr_colator", "COLLATE_FUNCTION", "simclr_collator"),
    row("config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=64", "fewer than the global batch of 64",
        phase=RUN, status=1),
    row("config.DATA.TRAIN.DATA_SOURCES=[disk_foldr]", "config.DATA.TRAIN.DATA_SOURCES", "'disk_f"),
    row("config.DATA.TRAIN.DATA_SOURCES=disk_folder", "expected list[str]", "[disk_folder]"),
    row("config.DATA.TRAIN.DATA_SOURCES=[]", "config.DATA.TRAIN.DATA_SOURCES is empty", phase=RUN,
        status=1),
    row(f"{PATHS}=[images]", f"{PATHS}.0: the source 'synthetic' makes its images"),
    row(f"{PATHS}=[a,b]", f"{PATHS}: expected"),
    row("config.DATA.TRAIN.LABEL_SOURCES=[disk_folder]", "LABEL_SOURCES.0: 'disk_folder' does not"),
    row("config.DATA.TRAIN.IMAGE_COLUMN=photo", "config.DATA.TRAIN.IMAGE_COLUMN: ", "synthetic"),
    row("config.DATA.TRAIN.DATA_SOURCES=[torchvision_dataset] config.DATA.TRAIN.EXIF_ROTATION=true",
        "config.DATA.TRAIN.EXIF_ROTATION: ", "torchvision_dataset"),
    row("config.DATA.AUGMENT_BACKEND=numbba", "config.DATA.AUGMENT_BACKEND", "numba"),
    row(f"{FOLDER}=[empty]", f"{PATHS}.0: no image in empty", ".jpg", phase=RUN, status=1),
    row(f"{FOLDER}=[not_there]", f"{PATHS}.0", "not_there", phase=RUN),
    row(f"{LISTED}=[imges/list.npy]", f"{PATHS}.0", "'images'", phase=RUN),
    row(f"config.DATA.TRAIN.DATA_SOURCES=[array_file] {PATHS}=[none.npy]", "none.npy", phase=RUN),
    row(f"{FOLDER}=[a_file]", f"{PATHS}.0", "a file, not a folder", phase=RUN, status=1),
    row(f"{LISTED}=[images]", f"{PATHS}.0", "it is a folder", phase=RUN, status=1),
    row(f"{LISTED}=[text.npy]", f"{PATHS}.0", "not a .npy file", phase=RUN, status=1),
    row(f"{FOLDER}=[unreadable] config.DATA.TRAIN.READ_RETRIES=0 config.DATA.TRAIN.DATA_LIMIT=-1 "
        "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=1", "unreadable/a.jpg", phase=RUN,
        status=1),
    row("config.DATA.TRAIN.DATA_SOURCES=[csv_filelist] config.DATA.TRAIN.DATA_PATHS=[table.csv] "
        "config.DATA.TRAIN.IMAGE_COLUMN=photo", "photo", "table.csv", phase=RUN),
    row("config.DATA.TRAIN.DATA_SOURCES=[disk_folder] config.DATA.TRAIN.DATASET_NAMES=[mine]",
        "mine", "catalogue", phase=RUN, status=1),
]  # fmt: skip

MACHINE = [
    row("config.MACHINE.DEVICE=cup", "config.MACHINE.DEVICE: expected", "'cpu'"),
    row("config.MACHINE.DEVICE=gpu", "config.MACHINE.DEVICE is gpu", phase=RUN, status=1),
    row("config.MODEL.AMP_PARAMS.USE_AMP=true config.MODEL.AMP_PARAMS.AMP_TYPE=pytorch",
        "config.MODEL.AMP_PARAMS", "fp16 requires a CUDA GPU", phase=RUN),
    row("config.DISTRIBUTED.NUM_NODES=2", "config.DISTRIBUTED.NUM_NODES: a run on 2 nodes",
        phase=RUN),
    row("config.CHECKPOINT.DIR=a_file", "config.CHECKPOINT.DIR", "a_file is a file", phase=CONFIG),
    row("config.CHECKPOINT.DIR=/dev/null/run", "config.CHECKPOINT.DIR", "/dev/null", phase=CONFIG),
    row(f"config.CHECKPOINT.DIR={'x' * 300}", "config.CHECKPOINT.DIR", "cannot be created",
        phase=CONFIG),
    row("config.CHECKPOINT.APPEND_DISTR_RUN_ID=true", "config.CHECKPOINT.APPEND_DISTR_RUN_ID: set",
        phase=CONFIG),
]  # fmt: skip

ROWS = [*COMMAND_LINE, *FILES, *VALUES, *METHODS_AND_MODELS, *DATA, *MACHINE]
TEXTS = {
    "configs/broken.yaml": "# @package _global_\nconfig: [",
    "configs/number.yaml": "# @package _global_\nconfig: 3\n",
    "configs/circle.yaml": "# @package _global_\ndefaults: [other]\nconfig: {LOG_FREQUENCY: 1}\n",
    "configs/other.yaml": "# @package _global_\ndefaults: [circle]\nconfig: {LOG_FREQUENCY: 1}\n",
    "configs/alias.yaml": "# @package _global_\nconfig: &a\n  DATA: *a\n",
    "configs/list_at_top.yaml": "- 1\n- 2\n",
    "configs/two_lengths.yaml": "# @package _global_\nconfig:\n  OPTIMIZER:\n    num_epochs: 1\n"
    "    num_iterations: 3\n",
    "configs/interpolated.yaml": "# @package _global_\nconfig:\n  SEED_VALUE: ${config.NOT_THERE}\n",
    "configs/overlay.yaml": "# @package _global_\nconfig: {LOG_FREQUENCY: 1}\n",
    "plugin_that_raises.py": "one = 1\none / 0\n",
    "a_file": "x",
    "text.npy": "a.png\n",
    "text.torch": "not a checkpoint",
    "table.csv": "path,label\nimages/a.png,0\n",
    "unreadable/a.jpg": "no JPEG",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for inside in ("configs", "images", "empty", "unreadable"):
        (folder / inside).mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    (folder / "configs/latin.yaml").write_bytes(b"# caf\xe9\nconfig: {}\n")
    tree = {"config": recipe(OPTIMIZER__num_epochs=1)}
    (folder / "configs/tiny.yaml").write_text("# @package _global_\n" + yaml.safe_dump(tree))
    for name in "abcdefgh":
        Image.new("RGB", (16, 16)).save(folder / "images" / f"{name}.png")
    return folder


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How far the command came."""
    reached = [CONFIG]
    check, launch = preflight.expect_fitting_shapes, local.launch

    def checked(config: Any) -> None:
        reached.append(CHECK)
        check(config)

    def launched(run: Any) -> None:
        reached.append(RUN)
        launch(run)

    monkeypatch.setattr(preflight, "expect_fitting_shapes", checked)
    monkeypatch.setattr(local, "launch", launched)
    return reached


@pytest.mark.parametrize("each", ROWS, ids=str)
def test_a_mistake_is_told(
    each: Row,
    project: Path,
    tmp_path: Path,
    phases: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project)
    given = each.arguments.split()
    if not given[0].startswith("config="):
        given = ["config=tiny", *given]
    if "CHECKPOINT.DIR" not in each.arguments:
        given.append(f"config.CHECKPOINT.DIR={tmp_path / 'run'}")
    status = main(_joined(given))
    error = capsys.readouterr().err
    assert (status, phases[-1]) == (each.status, each.phase), error
    assert re.search(r"^error: ", error, re.MULTILINE)
    assert "Traceback" not in error
    for part in each.said:
        assert part in error
    assert not list(tmp_path.rglob("*.torch"))
    if each.phase != RUN:
        assert os.listdir(tmp_path) in ([], ["run"])


def _joined(words: list[str]) -> list[str]:
    """Arguments with spaces inside braces, which split() took apart."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].count("{") > joined[-1].count("}"):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined
