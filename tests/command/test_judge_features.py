"""`sslengine judge --features`: files that numpy, pandas' engines, torch and this engine write."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from sslengine.command.front import main
from sslengine.evaluation.store import Store

DRAW = np.random.default_rng(0)
LABELS = DRAW.integers(0, 3, 160)
ROWS = (np.eye(3)[LABELS] @ DRAW.normal(size=(3, 8)) + DRAW.normal(size=(160, 8))).astype(
    np.float32
)
NAMES = np.array(["cat", "ant", "bee"])[LABELS]
FEW = ["--set", "EVALUATE.LABEL_FREE=[rankme]"]
SPLITS = {"train": slice(0, 100), "test": slice(100, 160)}
SIGNS = {".csv": ",", ".tsv": "\t"}  # between cells


def judged(out: Path, *arguments: object) -> dict[str, Any]:
    assert main(["judge", "--features", *map(str, arguments), *FEW, "--out", str(out)]) == 0
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def of_scikit_learn(rows: NDArray[Any] = ROWS) -> float:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    nearest = KNeighborsClassifier(1).fit(unit[:100], LABELS[:100])
    return 100 * float(nearest.score(unit[100:], LABELS[100:]))


def write(path: Path, rows: NDArray[Any], names: NDArray[Any]) -> None:
    if path.suffix == ".npz":
        np.savez(path, embeddings=rows, y=names)
    elif path.suffix == ".pt":
        numbers = np.unique(names, return_inverse=True)[1]
        torch.save({"features": torch.from_numpy(rows), "labels": torch.from_numpy(numbers)}, path)
    elif path.suffix in SIGNS:
        with path.open("w", newline="") as file:
            lines = csv.writer(file, delimiter=SIGNS[path.suffix])
            lines.writerow(["path", "label", *(f"feature_{each}" for each in range(8))])
            lines.writerows(
                [f"{n}.png", name, *row] for n, (name, row) in enumerate(zip(names, rows))
            )
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        lists = pyarrow.array(rows.tolist())
        parquet.write_table(pyarrow.table({"features": lists, "label": names.tolist()}), path)


@pytest.mark.parametrize("ending", ["npz", "pt", "csv", "tsv", "parquet"])
def test_files_of_other_programs(ending: str, tmp_path: Path) -> None:
    for split, some in SPLITS.items():
        write(tmp_path / f"{split}.{ending}", ROWS[some], NAMES[some])
    files = [tmp_path / f"{split}.{ending}" for split in SPLITS]
    files[1] = files[1].rename(files[1].with_suffix(f".{ending.upper()}"))
    report = judged(tmp_path / "out.json", *files)
    (score,) = report["scores"]
    assert score["knn"]["1"] == pytest.approx(of_scikit_learn())
    assert score["about"]["images"] == {"train": 100, "test": 60}
    most = np.bincount(LABELS[:100]).argmax()
    assert report["chance"] == pytest.approx(100 * (LABELS[100:] == most).mean())
    assert score["label_free"]["rankme"]["n"] == 100


def test_a_table_of_a_spreadsheet_and_tensors_of_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`;` between cells; bfloat16, which numpy has not, with a gradient."""
    monkeypatch.setitem(SIGNS, ".csv", ";")
    files = tmp_path / "train.csv", tmp_path / "test.pt"
    rows = torch.from_numpy(ROWS[100:]).bfloat16()
    write(files[0], ROWS[:100], LABELS[:100])
    held = {"features": rows.clone().requires_grad_(), "labels": torch.from_numpy(LABELS[100:])}
    torch.save(held, files[1])
    (score,) = judged(tmp_path / "out.json", *files)["scores"]
    rounded = np.concatenate([ROWS[:100], rows.float().numpy()])
    assert score["knn"]["1"] == pytest.approx(of_scikit_learn(rounded))


def test_matrices_with_labels_elsewhere_and_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers in .npy and .txt; of one file a fifth is held out; without labels what needs none."""
    files: dict[str, list[str]] = {"features": [], "labels": []}
    for split, some in SPLITS.items():
        np.save(tmp_path / f"{split}.npy", ROWS[some])
        files["features"].append(str(tmp_path / f"{split}.npy"))
    np.save(tmp_path / "labels.npy", LABELS[:100])
    (tmp_path / "labels.txt").write_text("\n".join(map(str, LABELS[100:])))
    labels = ["--labels", str(tmp_path / "labels.npy"), str(tmp_path / "labels.txt")]
    (score,) = judged(tmp_path / "two.json", *files["features"], *labels)["scores"]
    assert score["knn"]["1"] == pytest.approx(of_scikit_learn())
    report = judged(tmp_path / "one.json", files["features"][0], *labels[:2])
    assert report["scores"][0]["about"]["images"] == {"train": 80, "test": 20}
    assert "20 of 100 rows are held out" in report["notes"][0]
    for given in (files["features"], files["features"][:1]):
        report = judged(tmp_path / f"none{len(given)}.json", *given)
        assert report["scores"][0]["knn"] == {}
        assert report["scores"][0]["label_free"]["rankme"]["value"] > 1
        assert "there are no training labels" in report["notes"][0]
    np.save(tmp_path / "same.npy", np.zeros(100, int))
    report = judged(tmp_path / "same.json", files["features"][0], "--labels", tmp_path / "same.npy")
    assert "It is judged without labels" in report["notes"][0]
    np.save(tmp_path / "three.npy", LABELS[:3])
    wrong: list[tuple[list[str], str]] = [
        ([*files["features"], "--labels", str(tmp_path / "three.npy")], "expected 2 files"),
        ([files["features"][0], "--labels", str(tmp_path / "three.npy")], "3 labels for 100 rows"),
        ([str(tmp_path / "labels.npy")], "a row of features for each image"),
        ([str(tmp_path / "nothing.npy")], "there is no such file"),
        ([files["features"][0], "--out", str(tmp_path / "one.json")], "it is there already"),
        ([files["features"][0], "--set", "EVALUATE.LABEL_FRE=[]"], "expected a key of EVALUATE"),
        ([files["features"][0], "--val", "x"], "belong to a run"),
    ]
    for arguments, told in wrong:
        assert main(["judge", "--features", *arguments]) in (1, 2)
        assert told in " ".join(capsys.readouterr().err.split())


def test_rows_that_cannot_be_scored(tmp_path: Path) -> None:
    """Without a label in one split; NaN; too large for float16. What needs no labels is computed."""
    none, first = np.full(160, -1), np.arange(160) < 100
    cases: dict[str, tuple[NDArray[Any], NDArray[Any], str]] = {
        "unlabelled": (ROWS, np.where(first, none, LABELS), "no training row has a label"),
        "nan": (np.where(first[:, None], ROWS, np.nan), LABELS, "NaN or infinite"),
        "inf": (np.sign(ROWS).astype(np.float16) * np.inf, LABELS, "EVALUATE.DTYPE=bfloat16"),
    }
    for name, (rows, labels, told) in cases.items():
        for split, some in SPLITS.items():
            np.savez(tmp_path / f"{name}_{split}.npz", features=rows[some], labels=labels[some])
        files = [tmp_path / f"{name}_{split}.npz" for split in SPLITS]
        report = judged(tmp_path / f"{name}.json", *files)
        (score,) = report["scores"]
        assert (score["knn"], score["linear"]) == ({}, None)
        assert any(told in each for each in report["notes"]), report["notes"]
        assert (score["label_free"]["rankme"]["value"] is None) == (name == "inf")


def test_training_rows_among_themselves(tmp_path: Path) -> None:
    """Where test rows have no labels, or there are none but -1: each row is left out once."""
    unit = ROWS[:100] / np.linalg.norm(ROWS[:100], axis=1, keepdims=True)
    judge = KNeighborsClassifier(1, algorithm="brute")
    found = cross_val_predict(judge, unit, LABELS[:100], cv=LeaveOneOut())
    expected = 100 * float((found == LABELS[:100]).mean())
    np.savez(tmp_path / "train.npz", features=ROWS[:100], labels=LABELS[:100])
    np.savez(tmp_path / "bare.npz", features=ROWS[100:])
    np.savez(tmp_path / "none.npz", features=ROWS[100:], labels=np.full(60, -1))
    for name in ("bare", "none"):
        files = [tmp_path / "train.npz", tmp_path / f"{name}.npz"]
        report = judged(tmp_path / f"{name}.json", *files)
        (score,) = report["scores"]
        assert score["knn"]["1"] == pytest.approx(expected)
        assert score["about"]["knn_on"] == "TRAIN, each image by the others"
        assert score["linear"] is None
        most = np.bincount(LABELS[:100]).max()
        assert report["chance"] == most
        assert any("each image of TRAIN is classified by the others" in n for n in report["notes"])


def test_test_rows_that_are_training_rows_too(tmp_path: Path) -> None:
    rows = np.concatenate([ROWS[100:], ROWS[:7]])
    np.savez(tmp_path / "train.npz", features=ROWS[:100], labels=NAMES[:100])
    np.savez(tmp_path / "test.npz", features=rows, labels=np.concatenate([NAMES[100:], NAMES[:7]]))
    found = judged(tmp_path / "out.json", tmp_path / "train.npz", tmp_path / "test.npz")
    assert any(
        each.startswith("7 of 67 test rows are also training rows") for each in found["notes"]
    )


def test_a_class_that_training_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "train.npz", features=ROWS[:100], labels=NAMES[:100])
    np.savez(tmp_path / "test.npz", features=ROWS[100:], labels=np.array(["beee"] * 60))
    files = [str(tmp_path / "train.npz"), str(tmp_path / "test.npz")]
    assert main(["judge", "--features", *files]) == 1
    assert "'beee', which the training features lack. Did you mean 'bee'" in capsys.readouterr().err


def test_labels_of_unlike_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers and names, indicators of other classes, or of another number of them."""
    shown = np.eye(3, dtype=int)[LABELS]
    kinds: dict[str, tuple[dict[str, NDArray[Any]], str]] = {
        "numbers": ({"labels": LABELS}, "numbers"),
        "floats": ({"labels": LABELS.astype(float)}, "numbers"),
        "names": ({"labels": NAMES}, "text"),
        "abc": ({"labels": shown, "classes": np.array([*"abc"])}, "rows of indicators"),
    }
    files = {}
    for name, (arrays, _) in kinds.items():
        files[name] = str(tmp_path / f"{name}.npz")
        np.savez(files[name], features=ROWS, **arrays)
    write(tmp_path / "train.csv", ROWS[:100], LABELS[:100])
    write(tmp_path / "test.csv", ROWS[100:], NAMES[100:])
    csvs = [str(tmp_path / f"{split}.csv") for split in SPLITS]
    told = f"labels of {csvs[0]} are numbers, those of {csvs[1]} are text: expected the same"
    assert main(["judge", "--features", *csvs]) == 1
    assert told in capsys.readouterr().err
    for one in kinds:
        for two in kinds:
            if kinds[one][1] == kinds[two][1]:
                continue
            assert main(["judge", "--features", files[one], files[two]]) == 1
            told = f"{files[one]} are {kinds[one][1]}, those of {files[two]} are {kinds[two][1]}"
            assert told in capsys.readouterr().err
    np.savez(tmp_path / "abd.npz", features=ROWS, labels=shown, classes=np.array([*"abd"]))
    np.savez(tmp_path / "two.npz", features=ROWS, labels=shown[:, :2])
    for name, wrong in (("abd", "classes a, b, c, those of"), ("two", "rows of 3 indicators")):
        assert main(["judge", "--features", files["abc"], str(tmp_path / f"{name}.npz")]) == 1
        assert wrong in capsys.readouterr().err
    (tmp_path / "bad.csv").write_text("label_a,label_b,feature_0,feature_1\n1,0,1,2\n0,2,1,3\n")
    assert main(["judge", "--features", str(tmp_path / "bad.csv")]) == 1
    assert "column 'label_b': expected 1, 0, or nothing" in capsys.readouterr().err


def test_a_fifth_of_the_rows_of_several_classes(tmp_path: Path) -> None:
    shown = np.stack([LABELS == 0, LABELS > 0], 1).astype(int)
    np.savez(tmp_path / "all.npz", features=ROWS, labels=shown)
    report = judged(tmp_path / "out.json", tmp_path / "all.npz")
    (score,) = report["scores"]
    assert report["metric"] == "mAP"
    assert score["about"]["images"] == {"train": 128, "test": 32}
    assert "32 of 160 rows are held out" in report["notes"][0]
    assert score["knn"]["20"] > report["chance"]
    assert score["linear"] > report["chance"]


def test_a_store_and_files_of_extract_features(tmp_path: Path) -> None:
    """In one folder each, with both splits; each network of a store has its own score."""
    stores, files = tmp_path / "stores", tmp_path / "files"
    files.mkdir()
    for split, some in SPLITS.items():
        rows, labels = torch.from_numpy(ROWS[some]), torch.from_numpy(LABELS[some])
        for network in ("one", "two"):
            depends_on = {"weights_sha256": network, "images_sha256": split, "view": split}
            store = Store.make(stores / f"{split}-{split}{network}", depends_on, len(rows))
            for shard in store.missing():
                part = slice(shard.images.start, shard.images.stop)
                given = rows[part] if network == "one" else rows[part] * 0 + 1
                store.write(shard, {"f": given}, labels[part], torch.tensor(shard.images))
        for kind, array in (
            ("features", rows),
            ("targets", labels),
            ("inds", np.arange(len(rows))),
        ):
            np.save(files / f"rank0_chunk0_{split}_res5_{kind}.npy", array)
    found = judged(tmp_path / "stores.json", stores)["scores"]
    assert [each["features"] for each in found] == ["trainone", "traintwo"]
    assert found[0]["knn"]["1"] == pytest.approx(of_scikit_learn())
    assert found[1]["knn"]["1"] != found[0]["knn"]["1"]
    (score,) = judged(tmp_path / "files.json", files)["scores"]
    assert (score["layer"], score["knn"]) == ("res5", found[0]["knn"])
    pair = [stores / "train-trainone", stores / "test-testone"]
    assert judged(tmp_path / "pair.json", *pair)["scores"][0]["knn"] == score["knn"]


def test_chance_of_several_classes_is_measured_as_the_scores_are(tmp_path: Path) -> None:
    """VOC's precision, the best at this place or behind it: of few rows far above their share."""
    shown = (np.arange(24)[:, None] % 2 == [0, 1]).astype(int)
    files = [tmp_path / "train.npz", tmp_path / "val.npz"]
    for each in files:
        np.savez(each, features=ROWS[:24], labels=shown)
    draw, found = np.random.default_rng(0), []
    for _ in range(2000):
        hits = draw.permutation(shown[:, 0])
        precision = hits.cumsum() / np.arange(1, 25)
        found.append(np.maximum.accumulate(precision[::-1])[::-1][hits > 0].mean())
    report = judged(tmp_path / "out.json", *files)
    assert report["chance"] == pytest.approx(100 * np.mean(found), abs=2.5)
    assert report["chance"] > 55
