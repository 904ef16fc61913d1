"""Every shipped config, VISSL's YAML and the tools of its benchmarks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine import catalog  # noqa: F401 - declares the engines
from sslengine.command.check import find, main
from sslengine.config.resolve import Resolved, resolve
from sslengine.engine import loop
from sslengine.engine.services import Services
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.registry import ENGINES
from tests.data.pictures import write_picture
from tests.engines.test_instance_retrieval import _revisited
from tests.small_runs import make_small
from tests.teachers import needed

ROOT = Path(__file__).resolve().parents[2]
VISSL = ROOT.parent / "shared" / "vissl-configs"
CPU = torch.device("cpu")

TWO_STEPS = [
    "config.OPTIMIZER.num_iterations=2", "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.DATA.TRAIN.DATA_LIMIT=16", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=4",
]  # fmt: skip

RECIPES = sorted(
    path.relative_to(ROOT / "configs").with_suffix("").as_posix()
    for path in (ROOT / "configs" / "pretrain").rglob("*.yaml")
)


def _train(run: Resolved, folder: Path) -> SelfSupervisionTask:
    task = SelfSupervisionTask(run.config, folder, CPU, hooks=[], services=Services())
    task.prepare()
    loop.run(task)
    assert task.iteration == 2
    assert all(0 < abs(loss) < 1e4 for loss in task.losses)
    return task


QUICK = sorted(path.stem for path in (ROOT / "configs" / "quickstart").glob("*.yaml"))


@pytest.mark.parametrize("name", QUICK)
def test_every_quickstart_config_trains_two_steps(name: str, tmp_path: Path) -> None:
    _train(resolve([f"config=quickstart/{name}", *TWO_STEPS, *needed(name)]), tmp_path)


# ---- YAML of VISSL's form, in any checkout

SHAPED = Path(__file__).parent / "vissl_shaped"


def test_yaml_of_vissls_form_trains_unchanged(tmp_path: Path) -> None:
    """A run and a part of it, for two nodes of GPUs; here with nothing but overrides."""
    arguments = ["config=pretrain/simclr/simclr_2node", "+config/pretrain/simclr/models=resnet18"]
    run = resolve([*arguments, *make_small(arguments, SHAPED)], [str(SHAPED)])
    task = _train(run, tmp_path)
    assert run.config.MODEL.TRUNK.RESNETS.DEPTH == 18
    # base_value 0.3 for 256 images; here 4 images.
    cosine = run.config.OPTIMIZER.param_schedulers.lr.schedulers[1]
    assert cosine.start_value == pytest.approx(0.3 * 4 / 256)
    assert task.optimizer.options_view.lr > 0


# ---- VISSL's own files

needs_vissl = pytest.mark.skipif(
    not VISSL.is_dir(), reason="VISSL's own YAML is not beside this checkout"
)
# VISSL itself cannot run these two: attention fails at the first batch.
NEVER_RAN = {
    "pretrain/dino/dino_8gpus_vit_13b_debug": "40 heads do not divide HIDDEN_DIM 5140",
    "pretrain/dino/models/swint_base": "3 heads do not divide the stage's width 128",
}
# What VISSL's benchmarks name and this engine does not have; only these may stop one.
NOT_THERE = (
    r"VISSL's trunk '(alexnet_\w+|classy_vit)' is not here",
    r"VISSL's data source 'everstore' is not here",  # of Facebook's own network
    r"INPUT_TYPE: expected one of rgb, bgr, got 'lab'",
    # Of a composition with a run that the part was not made for.
    r"HEAD.PARAMS: 1 heads for the \d features",
    r"VisionTransformer has no feature 'res5'",
)
FILES = find(VISSL) if VISSL.is_dir() else []
PRETRAIN = [file for file in FILES if file.name.startswith("pretrain/")]
MULTI_CROP = "config.DATA.TRAIN.TRANSFORMS.0.size_crops"
ONE_CROP = "config.DATA.TRAIN.TRANSFORMS.1.size=64"
DINO_HEAD = "config.MODEL.HEAD.PARAMS.0.1.num_clusters=[64]"
SWAV_HEAD = "config.MODEL.HEAD.PARAMS.0.1.num_clusters=[8]"


@needs_vissl
@pytest.mark.parametrize("name", [file.name for file in PRETRAIN if file.is_run])
def test_vissls_pretraining_pass_every_check(name: str) -> None:
    if name in NEVER_RAN:
        with pytest.raises(ConfigError, match=NEVER_RAN[name]):
            resolve([f"config={name}"], [str(VISSL)])
    else:
        assert resolve([f"config={name}"], [str(VISSL)]).config.LOSS.name


def _is_known(name: str, problem: str) -> None:
    """A file of VISSL's may be refused for the reasons above alone."""
    if name in NEVER_RAN:
        assert re.search(NEVER_RAN[name], problem)
        return
    assert not name.startswith("pretrain/"), f"{name}: {problem}"
    for line in problem.splitlines():
        told = line.startswith(("  ", "..."))  # what is known, how many more
        assert told or any(re.search(reason, line) for reason in NOT_THERE), f"{name}: {line}"


@needs_vissl
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_file_of_vissl_composes_and_builds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(VISSL), "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)
    assert len(verdicts) == len(FILES)
    wrong = {each["file"]: each["problem"] for each in verdicts if each["problem"]}
    assert set(NEVER_RAN) <= set(wrong)
    for name, problem in wrong.items():
        _is_known(name, problem)


def _trial(*arguments: str, slow: bool = False) -> Any:
    """`config=NAME` and parts, then what makes it small; the name of the test is the first.

    slow: it takes long, and another of its method is quick.
    """
    name = " ".join(each.split("/")[-1] for each in arguments[:2])
    return pytest.param(arguments, id=name, marks=pytest.mark.slow if slow else ())


@needs_vissl
@pytest.mark.parametrize(
    "arguments",
    [
        _trial("config=pretrain/simclr/simclr_8node_resnet", ONE_CROP),
        _trial("config=pretrain/simclr/simclr_4node_resnet", ONE_CROP, slow=True),
        _trial("config=pretrain/simclr/simclr_8node_resnet",
               "+config/pretrain/simclr/transforms=multicrop_2x160_4x96", f"{MULTI_CROP}=[48,32]",
               slow=True),
        _trial("config=pretrain/simclr/simclr_8node_resnet",
               "+config/pretrain/simclr/models=resnext101", ONE_CROP, slow=True),
        _trial("config=pretrain/simclr/simclr_8node_resnet", "config.MODEL.TRUNK.RESNETS.DEPTH=18",
               "config.MODEL.HEAD.PARAMS=[[mlp,{dims:[512,16]}]]", ONE_CROP),
        _trial("config=pretrain/supervised/supervised_8gpu_resnet",
               "config.DATA.TRAIN.TRANSFORMS.0.size=64"),
        _trial("config=pretrain/moco/moco_1node_resnet", ONE_CROP),
        _trial("config=pretrain/barlow_twins/barlow_twins_4node_resnet", ONE_CROP,
               "config.MODEL.HEAD.PARAMS=[[mlp,{dims:[2048,64]}]]"),
        _trial("config=pretrain/swav/swav_8node_resnet", SWAV_HEAD, f"{MULTI_CROP}=[64,32]",
               slow=True),
        _trial("config=pretrain/swav/swav_8node_resnet", "+config/pretrain/swav/models=regnet400mf",
               SWAV_HEAD, f"{MULTI_CROP}=[64,32]"),
        _trial("config=pretrain/deepcluster_v2/deepclusterv2_2crops_resnet", f"{MULTI_CROP}=[64]",
               "config.LOSS.deepclusterv2_loss.num_clusters=[4,3]"),
        _trial("config=pretrain/dino/dino_16gpus_deits16", DINO_HEAD, f"{MULTI_CROP}=[32,16]",
               slow=True),
        _trial("config=pretrain/dino/dino_16gpus_deits16_fsdp", DINO_HEAD, f"{MULTI_CROP}=[32,16]"),
        _trial("config=pretrain/dino/dino_16gpus_xcit_small_12_p16", DINO_HEAD,
               f"{MULTI_CROP}=[32,16]", slow=True),
        _trial("config=pretrain/npid/npid_8gpu_resnet", ONE_CROP, slow=True),
        _trial("config=pretrain/npid/npid++_4nodes_resnet", ONE_CROP),
        _trial("config=pretrain/pirl/pirl_jigsaw_4node_resnet50",
               "config.DATA.TRAIN.TRANSFORMS.0.crop_size_image=64",
               "config.DATA.TRAIN.TRANSFORMS.0.crop_size_patches=135"),
        _trial("config=pretrain/rotnet/rotnet_8gpu_resnet", ONE_CROP),
        # The file of permutations is an address; the error names the script that makes one.
        _trial("config=pretrain/jigsaw/jigsaw_8gpu_resnet",
               "config.DATA.TRAIN.TRANSFORMS.7={name: ShuffleImgPatches, num_perms: 2000}",
               "config.DATA.TRAIN.TRANSFORMS.0.size=136", "config.DATA.TRAIN.TRANSFORMS.2.size=135",
               slow=True),
    ],
)  # fmt: skip
def test_vissls_yaml_trains_unchanged(arguments: tuple[str, ...], tmp_path: Path) -> None:
    run = resolve([*arguments, *make_small(arguments, VISSL)], [str(VISSL)])
    task = _train(run, tmp_path)
    assert run.config.DISTRIBUTED.BACKEND == "gloo"
    assert task.optimizer.options_view.lr > 0


HUGE = ("vit_", "xcit_l", "xcit_large", "xcit_medium", "w4", "w5", "powerlaw", "inat18")
RUNS = [file.name for file in PRETRAIN if file.is_run and not any(e in file.name for e in HUGE)]


@needs_vissl
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RUNS)
def test_every_run_of_vissl_trains_two_steps(name: str, tmp_path: Path) -> None:
    """At full size, but for those that take more memory than a laptop has."""
    few = ["config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=2", "config.DATA.TRAIN.DATA_LIMIT=4"]
    arguments = [f"config={name}"]
    small = [*make_small(arguments, VISSL), *few]
    with pytest.raises(SSLEngineError) if "jigsaw_8gpu" in name else nullcontext():  # needs a file
        _train(resolve([*arguments, *small], [str(VISSL)]), tmp_path)


# ---- VISSL's benchmark YAML, unchanged, through the tools that users start: on made images, from
# a dataset catalogue.


SMALL_BENCHMARK = [
    "config.MACHINE.DEVICE=cpu", "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.DATA.TRAIN.COPY_TO_LOCAL_DISK=false", "config.DATA.TEST.COPY_TO_LOCAL_DISK=false",
    "config.DISTRIBUTED.NUM_NODES=1", "config.MODEL.WEIGHTS_INIT.PARAMS_FILE=''",
]  # fmt: skip
TWO_STEPS_OF_A_BENCHMARK = [
    "config.OPTIMIZER.num_iterations=2", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=2",
    "config.DATA.TEST.BATCHSIZE_PER_REPLICA=2", "config.DATA.TEST.DATA_LIMIT=2",
    "config.MODEL.AMP_PARAMS.USE_AMP=false",
    "config.MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN=false",
]  # fmt: skip
LINEAR = "benchmark/linear_image_classification"
TRAINER = "run_distributed_engines"
# (tool, config, ranks, overrides, a file of the run)
RUNS: list[tuple[str, str, int, list[str], str]] = [
    ("train_svm", f"{LINEAR}/voc07/eval_resnet_8gpu_transfer_voc07_svm", 2,
     ["config.SVM.costs.costs_list=[1.0]"], "res5/test_ap.npy"),
    ("train_svm_low_shot", "benchmark/low_shot_transfer/voc07/eval_resnet_8gpu_transfer_voc07_low_shot_svm", 1,
     ["config.SVM.costs.costs_list=[1.0]", "config.SVM.low_shot.k_values=[1]"], "res5/test_ap_mean.npy"),
    ("low_shot_test", "benchmark/low_shot_transfer/imagenet/logistic_regression_in1k", 2,
     ["config.DATA.TRAIN.DATA_LIMIT=6"], "low_shot_test.json"),
    ("nearest_neighbor_test", "benchmark/nearest_neighbor/eval_resnet_8gpu_in1k_kNN", 2, [],
     "kNN_heads_output_predictions.npy"),
    ("instance_retrieval_test", "benchmark/instance_retrieval/eval_resnet_1gpu_roxford", 2,
     ["config.IMG_RETRIEVAL.DATASET_PATH=retrieval", "config.IMG_RETRIEVAL.RESIZE_IMG=64",
      "config.IMG_RETRIEVAL.N_PCA=8"], "rankings.json"),
    (TRAINER, f"{LINEAR}/imagenet1k/eval_resnet_8gpu_transfer_in1k_linear", 1, TWO_STEPS_OF_A_BENCHMARK, "metrics.jsonl"),
    (TRAINER, f"{LINEAR}/clevr_count/eval_resnet_8gpu_transfer_clevr_count_linear", 1, TWO_STEPS_OF_A_BENCHMARK,
     "metrics.jsonl"),
    (TRAINER, "benchmark/semi_supervised/imagenet1k/eval_resnet_8gpu_transfer_in1k_semi_sup_fulltune", 1,
     TWO_STEPS_OF_A_BENCHMARK, "metrics.jsonl"),
]  # fmt: skip


def test_each_tool_of_a_benchmark_starts_its_engine() -> None:
    found = {
        path.stem: re.search(r'"engine_name=(\w+)"', path.read_text())
        for path in (ROOT / "tools").glob("*.py")
    }
    named = {tool: match[1] for tool, match in found.items() if match}
    assert {"train_svm", "train_svm_low_shot", "low_shot_test", "nearest_neighbor_test", "instance_retrieval_test",
            "cluster_features_and_label"} == named.keys()  # fmt: skip
    assert all(tool == engine and engine in ENGINES.names() for tool, engine in named.items())


def _catalogue(folder: Path) -> Path:
    """Each dataset that VISSL names: three classes as folders, or as lists of files."""
    lists: dict[str, dict[str, list[str]]] = {"numbers": {}, "rows": {}, "folders": {}}
    for split, count in (("train", 4), ("val", 3)):
        names = [f"{cls}/{number}.png" for cls in ("a", "b", "c") for number in range(count)]
        paths = [write_picture(folder / split / name, n, 48) for n, name in enumerate(names)]
        np.save(folder / f"{split}_images.npy", np.array([str(path) for path in paths]))
        numbers = np.array(["abc".index(path.parent.name) for path in paths])
        for kind, labels in (("numbers", numbers), ("rows", np.eye(3, dtype=np.int64)[numbers])):
            np.save(folder / f"{split}_{kind}.npy", labels)
            lists[kind][split] = [str(folder / f"{split}_{each}.npy") for each in ("images", kind)]
        lists["folders"][split] = [str(folder / split), "<unused>"]
    kinds = {"voc2007": "rows", "imagenet1k_folder": "folders", "clevr_count_filelist": "numbers",
             "google-imagenet1k-per01": "numbers", "google-imagenet1k-per10": "numbers"}  # fmt: skip
    path = folder / "dataset_catalog.json"
    path.write_text(json.dumps({name: lists[kind] for name, kind in kinds.items()}))
    return path


@needs_vissl
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("tool", "config", "ranks", "more", "written"), RUNS, ids=[each[1] for each in RUNS]
)
def test_vissls_file(
    tmp_path: Path, tool: str, config: str, ranks: int, more: list[str], written: str
) -> None:
    for name in ("roxford5k", "rparis6k"):
        _revisited(tmp_path / "retrieval", name)
    catalogue = _catalogue(tmp_path)
    command = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), "--config-dir", str(VISSL),
               f"config={config}", f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}", *SMALL_BENCHMARK, *more]  # fmt: skip
    environment = {**os.environ, "VISSL_DATASET_CATALOG_PATH": str(catalogue)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert (tmp_path / "runs" / config / written).exists()
