"""VISSL's benchmarks on generated images, and against scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from sslengine.contrib.vissl_benchmarks.clusters import cluster_features_and_label
from sslengine.contrib.vissl_benchmarks.low_shot import low_shot_test
from sslengine.contrib.vissl_benchmarks.neighbours import nearest_neighbor_test
from sslengine.contrib.vissl_benchmarks.predictions import extract_label_predictions
from sslengine.contrib.vissl_benchmarks.prototypes import extract_cluster
from sslengine.contrib.vissl_benchmarks.svm import train_svm, train_svm_low_shot
from sslengine.engines.features import extract_features
from sslengine.engines.train import train
from sslengine.errors import ConfigError
from sslengine.evaluate.store import Store
from tests.data.pictures import write_picture
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


@pytest.mark.slow
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


def test_low_shot_regression(tmp_path: Path) -> None:
    """VISSL's steps, by scikit-learn, on the features of each draw."""
    sampling = {
        "DATA__TRAIN__DATA_LIMIT": 30,
        "DATA__TRAIN__DATA_LIMIT_SAMPLING__IS_BALANCED": True,
    }
    given = {"LOGISTIC_REGRESSION": {"LAMBDA": [1000.0, 10.0], "SEEDS": [3, 4]}}
    run = make_run(tmp_path, "low_shot_test", **{**FROZEN, **sampling}, LOW_SHOT_BENCHMARK=given)
    low_shot_test(run)
    found = json.loads((tmp_path / "low_shot_test.json").read_text())["flatten"]
    folders = {path.parent for path in tmp_path.rglob("manifest.json")}
    trains = [Store.read(each) for each in folders if each.name.startswith("train")]
    (test,) = [Store.read(each) for each in folders if each.name.startswith("test")]
    expected: dict[float, list[float]] = {1000.0: [], 10.0: []}
    trains.sort(key=lambda each: str(each.depends_on["view"]["DATA_LIMIT_SAMPLING"]))
    assert len(trains) == 2
    for drawn in trains:
        scaler = StandardScaler().fit(drawn.layer("flatten").tensor().flatten(1))
        rows, others = (
            scaler.transform(each.layer("flatten").tensor().flatten(1)) for each in (drawn, test)
        )
        for strength, scores in expected.items():
            cost = len(rows) / strength
            machine = LogisticRegression(C=cost, tol=1e-8, max_iter=9999).fit(rows, drawn.targets)
            scores.append(100 * machine.score(others, test.targets))
    for strength, scores in expected.items():
        assert found["details"]["draws"][f"lambda={strength:g} top1"] == pytest.approx(scores)
        assert found["metrics"][f"lambda={strength:g} top1"] == pytest.approx(np.mean(scores))
    best = [max(each) for each in zip(*expected.values())]
    assert found["details"]["best_on_test"] == pytest.approx(np.mean(best))


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


FOLDERS = {"cat": 9, "dog": 9}


def _of_files(root: Path, **changes: Any) -> dict[str, Any]:
    """Files in a folder for each class, as TRAIN and as TEST."""
    for number, name in enumerate(f"{c}/{i}.png" for c, n in FOLDERS.items() for i in range(n)):
        write_picture(root / name, number, 16)
    split = {
        "DATA_SOURCES": ["disk_folder"], "LABEL_SOURCES": ["disk_folder"],
        "DATA_PATHS": [str(root)], "BATCHSIZE_PER_REPLICA": 4, "TRANSFORMS": [{"name": "ToTensor"}],
        "DATA_LIMIT": 16,
    }  # fmt: skip
    return {"DATA": {"NUM_DATALOADER_WORKERS": 0, "TRAIN": split, "TEST": split},
            "LOSS": {"name": "CrossEntropyLoss"}, "TEST_MODEL": True, **changes}  # fmt: skip


def test_label_predictions(tmp_path: Path) -> None:
    changes = _of_files(
        tmp_path / "images", MODEL__HEAD__PARAMS=[["mlp", {"dims": [32, 3]}]],
        METERS={"name": "accuracy_list_meter", "accuracy_list_meter": {"topk_values": [1, 2]},
                "model_output_mask": True},
    )  # fmt: skip
    run = make_run(tmp_path / "run", "extract_label_predictions", **changes)
    extract_label_predictions(run)
    kinds = ("predictions", "conf_scores", "targets", "inds", "images")
    for split in ("train", "test"):
        found, scores, targets, inds, images = (
            np.load(tmp_path / "run" / f"rank0_{split}_heads_{kind}.npy") for kind in kinds
        )
        assert found.tolist() == (-scores).argsort(axis=1, kind="stable")[:, :2].tolist()
        assert scores.sum(axis=1) == pytest.approx(1)
        assert (scores[:, 2] == 0).all() == (split == "test")  # no label is of the third class
        assert inds.tolist() == list(range(16))
        assert [Path(each).parent.name for each in images] == [
            ("cat", "dog")[each] for each in targets[:, 0]
        ]
    results = json.loads((tmp_path / "run" / "extract_label_predictions.json").read_text())
    top1 = 100 * np.mean(found[:, 0] == targets[:, 0])
    assert results["test"]["heads"] == {"top_1": pytest.approx(top1), "top_2": pytest.approx(
        100 * np.mean((found == targets).any(axis=1)))}  # fmt: skip
    several = {"METERS": {"names": ["accuracy_list_meter", "mean_ap_list_meter"]}}
    with pytest.raises(ConfigError, match="expected accuracy_list_meter alone"):
        extract_label_predictions(
            make_run(tmp_path / "b", "extract_label_predictions", **{**changes, **several})
        )


@pytest.mark.slow
def test_clusters_of_prototypes_are_a_dataset(tmp_path: Path) -> None:
    head = ["swav_head", {"dims": [32, 8], "num_clusters": [5], "use_bn": False}]
    changes = _of_files(tmp_path / "images", MODEL__HEAD__PARAMS=[head])
    extract_cluster(make_run(tmp_path / "run", "extract_cluster", **changes))
    scores = np.load(tmp_path / "run" / "rank0_chunk0_train_heads_protos.npy")
    labels = np.load(tmp_path / "run" / "train_labels.npy")
    assert scores.shape == (16, 5)
    assert labels.tolist() == scores.argmax(axis=1).tolist()
    held = torch.load(tmp_path / "run" / "cluster_assignments.torch", weights_only=True)
    assert held["cluster_assignments"]["TRAIN"] == dict(enumerate(labels.tolist()))
    _train_on(tmp_path / "run" / "train_images.npy", tmp_path / "run" / "train_labels.npy")
    with pytest.raises(ConfigError, match="needs a head with prototypes"):
        extract_cluster(make_run(tmp_path / "b", "extract_cluster", **_of_files(tmp_path)))


def _train_on(images: Path, labels: Path) -> None:
    """As VISSL's next stage does."""
    split = {
        "DATA_SOURCES": ["disk_filelist"], "LABEL_SOURCES": ["disk_filelist"],
        "DATA_PATHS": [str(images)], "LABEL_PATHS": [str(labels)], "BATCHSIZE_PER_REPLICA": 4,
        "TRANSFORMS": [{"name": "ToTensor"}],
    }  # fmt: skip
    run = make_run(
        images.parent / "trained", DATA={"NUM_DATALOADER_WORKERS": 0, "TRAIN": split},
        LOSS={"name": "cross_entropy_multiple_output_single_target"}, OPTIMIZER__num_epochs=1,
    )  # fmt: skip
    assert train(run)


@pytest.mark.slow
def test_clusterfit(tmp_path: Path) -> None:
    """Clusters of computed features, and of features in files, are the same."""
    options = {"NUM_CLUSTERS": 3, "FEATURES": {"EXTRACT": True, "DATASET_NAME": "mine"}}
    changes = _of_files(tmp_path / "images", MODEL__HEAD__PARAMS=[])
    run = make_run(tmp_path / "a", "cluster_features_and_label", **changes, CLUSTERFIT=options)
    cluster_features_and_label(run)
    prefix = "mine_train_flatten_N3_D32"
    held = np.load(tmp_path / "a" / f"{prefix}.npz")
    extract_features(make_run(tmp_path / "b", "extract_features", **changes))
    features = np.load(tmp_path / "b" / "features" / "rank0_chunk0_train_flatten_features.npy")
    unit = features / (np.linalg.norm(features, axis=1, keepdims=True) + 1e-5)
    distances = ((unit[:, None] - held["centroids"]) ** 2).sum(axis=2)
    assert held["hard_labels"].tolist() == distances.argmin(axis=1).tolist()
    assert held["distances"] == pytest.approx(distances.min(axis=1), abs=1e-5)
    peer = KMeans(3, init=held["centroids"], n_init=1).fit(unit)  # a fixed point of Lloyd's steps
    assert peer.cluster_centers_ == pytest.approx(held["centroids"], abs=1e-5)
    given = {"PATH": str(tmp_path / "b" / "features"), "DATASET_NAME": "mine"}
    options = {"NUM_CLUSTERS": 3, "OUTPUT_DIR": str(tmp_path / "c"), "FEATURES": given}
    run = make_run(tmp_path / "b", "cluster_features_and_label", **changes, CLUSTERFIT=options)
    cluster_features_and_label(run)
    again = np.load(tmp_path / "c" / f"{prefix}.npz")
    assert again["hard_labels"].tolist() == held["hard_labels"].tolist()
    _train_on(tmp_path / "c" / f"{prefix}_images.npy", tmp_path / "c" / f"{prefix}_labels.npy")
    for wrong, match in (
        ({"LAYER_NAME": "flaten"}, "Did you mean 'flatten'"),
        ({"PATH": str(tmp_path)}, "config.CLUSTERFIT.FEATURES.EXTRACT=true"),
    ):
        options = {"NUM_CLUSTERS": 3, "FEATURES": {**given, **wrong}}
        run = make_run(tmp_path / "b", "cluster_features_and_label", **changes, CLUSTERFIT=options)
        with pytest.raises(ConfigError, match=match):
            cluster_features_and_label(run)
