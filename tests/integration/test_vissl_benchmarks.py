"""VISSL's benchmark YAML, unchanged, through the tools that users start: on made images, from a
dataset catalogue."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sslengine import catalog  # noqa: F401 - declares the engines
from sslengine.registry import ENGINES
from tests.data.pictures import write_picture
from tests.engines.test_instance_retrieval import _revisited
from tests.integration.test_configs import VISSL, needs_vissl

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "config.MACHINE.DEVICE=cpu", "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.DATA.TRAIN.COPY_TO_LOCAL_DISK=false", "config.DATA.TEST.COPY_TO_LOCAL_DISK=false",
    "config.DISTRIBUTED.NUM_NODES=1", "config.MODEL.WEIGHTS_INIT.PARAMS_FILE=''",
]  # fmt: skip
TWO_STEPS = [
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
    (TRAINER, f"{LINEAR}/imagenet1k/eval_resnet_8gpu_transfer_in1k_linear", 1, TWO_STEPS, "metrics.jsonl"),
    (TRAINER, f"{LINEAR}/clevr_count/eval_resnet_8gpu_transfer_clevr_count_linear", 1, TWO_STEPS,
     "metrics.jsonl"),
    (TRAINER, "benchmark/semi_supervised/imagenet1k/eval_resnet_8gpu_transfer_in1k_semi_sup_fulltune", 1,
     TWO_STEPS, "metrics.jsonl"),
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
               f"config={config}", f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}", *SMALL, *more]  # fmt: skip
    environment = {**os.environ, "VISSL_DATASET_CATALOG_PATH": str(catalogue)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert (tmp_path / "runs" / config / written).exists()
