"""VISSL's benchmarks on generated images, and against scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from sslengine.engines.benchmarks.neighbours import nearest_neighbor_test
from sslengine.engines.benchmarks.svm import train_svm, train_svm_low_shot
from sslengine.engines.extract_features import extract_features
from sslengine.errors import ConfigError, DataError
from tests.engines.runs import make_run, screen
from tests.engines.test_evaluate import FROZEN

SVM: dict[str, Any] = {
    "costs": {"costs_list": [0.1, 1.0]},
    "low_shot": {"sample_inds": [3, 5], "k_values": [1, 2]},
}


def test_svm(tmp_path: Path) -> None:
    run = make_run(tmp_path, "train_svm", **FROZEN, SVM=SVM)
    train_svm(run)
    folder = tmp_path / "flatten"
    test_ap = np.load(folder / "test_ap.npy")
    crossval = np.load(folder / "crossval_ap.npy")
    classes = len(test_ap)
    assert test_ap.shape == (classes, 1)
    assert crossval.shape == (classes, 2)
    chosen = np.array([0.1, 1.0])[crossval.argmax(axis=1)]
    assert np.load(folder / "chosen_cost.npy").tolist() == chosen.tolist()
    report = json.loads((tmp_path / "train_svm.json").read_text())["flatten"]
    assert report["metrics"]["mAP"] == pytest.approx(100 * np.nanmean(test_ap))
    assert f"flatten: mAP {report['metrics']['mAP']:.2f}" in screen(run)


def test_svm_is_trained_once(tmp_path: Path) -> None:
    """A part that a killed run left is read, one of other costs is not; force_retrain reads none."""
    train_svm(make_run(tmp_path, "train_svm", **FROZEN, SVM=SVM))
    part = next((tmp_path / "flatten" / "train_svm").glob("cls*.npz"))
    held = dict(np.load(part))
    np.savez(part, **{**held, "cost": np.array(7.0)})  # what only a run that reads it can tell
    costs = {}
    for name, options in (
        ("again", SVM),
        ("other", {"costs": {"costs_list": [0.5]}}),
        ("force", {**SVM, "force_retrain": True}),
    ):
        if name == "force":
            np.savez(part, **{**held, "cost": np.array(7.0)})
        train_svm(make_run(tmp_path, "train_svm", **FROZEN, SVM=options))
        costs[name] = np.load(tmp_path / "flatten" / "chosen_cost.npy").tolist()
    assert 7.0 in costs["again"]
    assert set(costs["other"]) == {0.5}
    assert 7.0 not in costs["force"]


def test_low_shot_svm(tmp_path: Path) -> None:
    train_svm_low_shot(make_run(tmp_path, "train_svm_low_shot", **FROZEN, SVM=SVM))
    folder = tmp_path / "flatten"
    draws = [[np.load(folder / f"test_ap_sample{n}_k{k}.npy")[0] for n in (3, 5)] for k in (1, 2)]
    assert np.load(folder / "test_ap_mean.npy").tolist() == np.mean(draws, axis=1).tolist()
    assert np.load(folder / "test_ap_std.npy").shape == (2, 2)
    report = json.loads((tmp_path / "train_svm_low_shot.json").read_text())["flatten"]
    best = 100 * np.mean(draws, axis=1).max(axis=1)  # as VISSL reports it
    assert [report["details"][f"k={k}"]["best_on_test"] for k in (1, 2)] == pytest.approx(best)


def test_neighbours_of_features_and_of_files(tmp_path: Path) -> None:
    """VISSL's files, of two ranks that both have some images, hold the same as the store."""
    run = make_run(tmp_path / "store", "nearest_neighbor_test", **FROZEN)
    nearest_neighbor_test(run)
    extract_features(make_run(tmp_path / "files", "extract_features", **FROZEN, TEST_MODEL=True))
    folder = tmp_path / "files" / "features"
    sets = {}
    for split in ("train", "test"):
        parts = [np.load(folder / f"rank0_chunk0_{split}_flatten_{kind}.npy")
                 for kind in ("features", "targets", "inds")]  # fmt: skip
        sets[split] = parts
        for rank, rows in ((0, slice(4, None)), (1, slice(0, 6))):
            for kind, part in zip(("features", "targets", "inds"), parts, strict=True):
                column = part[:, None] if kind == "targets" else part  # as VISSL has it
                np.save(folder / f"rank{rank}_chunk0_{split}_flatten_{kind}.npy", column[rows])
    given = {"TOPK": [1, 5], "FEATURES": {"PATH": str(folder)}}
    read = make_run(tmp_path / "read", "nearest_neighbor_test", **{**FROZEN, "NEAREST_NEIGHBOR": given})  # fmt: skip
    nearest_neighbor_test(read)
    reports = [json.loads((tmp_path / name / "nearest_neighbor_test.json").read_text())
               for name in ("store", "read")]  # fmt: skip
    assert reports[0] == reports[1]
    (train, labels, _), (test, wanted, inds) = sets["train"], sets["test"]
    peer = KNeighborsClassifier(1, metric="cosine").fit(train, labels)
    assert reports[0]["flatten"]["metrics"]["k=1 top1"] == pytest.approx(
        100 * peer.score(test, wanted)
    )
    ranked, targets, images = (
        np.load(tmp_path / "read" / f"kNN_flatten_output_{kind}.npy")
        for kind in ("predictions", "targets", "image_indices")
    )
    top1 = 100 * np.mean(ranked[:, 0] == targets)
    assert reports[0]["flatten"]["metrics"]["k=5 top1"] == pytest.approx(top1)
    assert images.tolist() == inds.tolist()
    assert targets.tolist() == wanted.tolist()


def test_wrong_folders_and_options(tmp_path: Path) -> None:
    run = make_run(tmp_path, "train_svm", **FROZEN, SVM_FEATURES_PATH=str(tmp_path))
    with pytest.raises(ConfigError, match="config.SVM_FEATURES_PATH: .* has no features"):
        train_svm(run)
    with pytest.raises(ConfigError, match="config.SVM.loss: .* Did you mean 'squared_hinge'"):
        make_run(tmp_path, **FROZEN, SVM={"loss": "sqared_hinge"})
    with pytest.raises(ConfigError, match="config.SVM.penalty: l1 is solved with"):
        make_run(tmp_path, **FROZEN, SVM={"penalty": "l1"})
    run = make_run(tmp_path, "train_svm", **FROZEN, SVM={"cls_list": [0, 99]})
    with pytest.raises(DataError, match="config.SVM.cls_list: the classes are 0 to"):
        train_svm(run)
