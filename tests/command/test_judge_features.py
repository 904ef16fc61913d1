"""`sslengine judge --features`: files that numpy, pandas' engines, torch and this engine write."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from sslengine.command.front import main
from sslengine.engines.scoring import Asked
from sslengine.errors import ConfigError, DataError
from sslengine.evaluate.given import GivenLabels, numbered, read_given, read_labels
from sslengine.evaluate.options import ON_FEATURES, ON_IMAGES
from sslengine.evaluate.outcome import Outcome
from sslengine.evaluate.store import Store

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
        (
            [files["features"][0], "--set", "EVALUATE.LABEL_FRE=[]"],
            "EVALUATE.LABEL_FRE: unknown key",
        ),
        ([files["features"][0], "--set", "SEED_VALUE=1"], "expected a key of EVALUATE"),
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
    for name in ("abd", "two"):
        assert main(["judge", "--features", files["abc"], str(tmp_path / f"{name}.npz")]) == 1
        assert "3 indicators (a, b, c)" in capsys.readouterr().err
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


# ---- `sslengine judge --features`: labels in other files, missing labels, files that are damaged.


BIRDS = ["great tit", "wren", "", "great tit"]


def _numbers(labels: GivenLabels) -> list[Any]:
    return numbered(labels, labels)[0].tolist()


def _table(path: Path, **columns: Sequence[Any]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_labels_alone(tmp_path: Path) -> None:
    """A line of text is a label; a table or an archive needs no features."""
    (tmp_path / "a.txt").write_text("great tit\r\nwren\n\ngreat tit\n\n", encoding="utf-8-sig")
    (tmp_path / "quoted.csv").write_text('label\ngreat tit\nwren\n""\ngreat tit\n')
    (tmp_path / "two.csv").write_text("path,label\n0,great tit\n1,wren\n2,\n3,great tit\n")
    np.savez(tmp_path / "a.npz", labels=np.array(BIRDS))
    np.savez(tmp_path / "unnamed.npz", np.array(BIRDS))
    for name in ("a.txt", "quoted.csv", "two.csv", "a.npz", "unnamed.npz"):
        assert _numbers(read_labels(tmp_path / name)) == [0, 1, -1, 0], name
    torch.save({"labels": torch.tensor([2, -1])}, tmp_path / "a.pt")
    torch.save(torch.tensor([2, -1]), tmp_path / "b.pt")
    for name in ("a.pt", "b.pt"):
        assert _numbers(read_labels(tmp_path / name)) == [2, -1]
    (tmp_path / "many.csv").write_text("label_a,label_b\n1,0\n,1\n")
    assert _numbers(read_labels(tmp_path / "many.csv")) == [[1, 0], [-1, 1]]
    (tmp_path / "other.csv").write_text("bird,size\nwren,9\n")
    with pytest.raises(DataError, match="no column or array class, label, .*; there is bird"):
        read_labels(tmp_path / "other.csv")
    with pytest.raises(ConfigError, match="expected a folder, or a file"):
        read_labels(Path(__file__))


def test_labels_that_are_missing_in_text(tmp_path: Path) -> None:
    for text, expected in (
        ("3,,5", [3, -1, 5]),
        ("3.0,,5.0", [3, -1, 5]),
        ("b,,a", [1, -1, 0]),
        ("1.5,,b", [0, -1, 1]),
    ):
        lines = [f"{cell},{number}.5" for number, cell in enumerate(text.split(","))]
        (tmp_path / "a.csv").write_text("\n".join(["label,feature_0", *lines]))
        labels = read_given(tmp_path / "a.csv").labels
        assert labels is not None
        assert _numbers(labels) == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["b", None, "a"], [1, -1, 0]),
        ([3, None, 5], [3, -1, 5]),
        ([3.0, None, 5.0], [3, -1, 5]),
        ([True, None, False], [1, -1, 0]),
        ([[1, 0], None, [0, 1]], [[1, 0], [-1, -1], [0, 1]]),
    ],
)
def test_labels_that_are_missing_in_parquet(
    labels: list[Any], expected: list[Any], tmp_path: Path
) -> None:
    path = _table(tmp_path / "a.parquet", label=labels, features=[[1.0, 2.0]] * 3)
    found = read_given(path).labels
    assert found is not None
    assert _numbers(found) == _numbers(read_labels(path)) == expected


def test_a_set_without_any_label_is_of_the_others_kind() -> None:
    names, none = GivenLabels("a", np.array(["b", "a"])), GivenLabels("b", np.array([-1, -1]))
    shown = GivenLabels("c", np.array([[1, 0], [0, 1]]))
    assert [each.tolist() for each in numbered(names, none)] == [[1, 0], [-1, -1]]
    assert [each.tolist() for each in numbered(shown, none)] == [[[1, 0], [0, 1]], [[-1, -1]] * 2]
    assert numbered(none, names)[0].tolist() == [-1, -1]
    assert numbered(none, none)[1].tolist() == [-1, -1]


def test_rows_without_a_label_are_left_out(tmp_path: Path) -> None:
    names = NAMES.tolist()
    names[3] = names[120] = None
    for split, some in (("train", slice(0, 100)), ("test", slice(100, 160))):
        _table(tmp_path / f"{split}.parquet", label=names[some], features=ROWS[some].tolist())
    report = judged(tmp_path / "out.json", tmp_path / "train.parquet", tmp_path / "test.parquet")
    assert report["scores"][0]["about"]["images"] == {"train": 99, "test": 59}
    assert "1 training rows have no label: left out" in report["notes"]


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    for ending in ("npy", "npz", "csv", "parquet", "pt"):
        (tmp_path / f"empty.{ending}").touch()
    np.savez(tmp_path / "whole.npz", features=ROWS)
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "header.csv").write_text("label,feature_0\n")
    (tmp_path / "text.csv").write_text("label,feature_0,feature_1\na,1,2\nb,1,x2\n")
    np.savez(tmp_path / "scalar.npz", features=ROWS, labels=np.array(3))
    np.savez(tmp_path / "objects.npz", features=np.array([{}], dtype=object))
    for path in sorted({*tmp_path.iterdir()} - {tmp_path / "whole.npz"}):
        assert main(["judge", "--features", str(path)]) == 1
        said = capsys.readouterr().err.strip()
        assert said.startswith(f"error: {path}: "), said


def test_kept_features_that_are_empty_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.make(tmp_path / "store", {}, 100)
    for shard in store.missing():
        numbers = torch.tensor(shard.images)
        store.write(shard, {"f": torch.from_numpy(ROWS[:100])}, numbers, numbers)
    (shard_file,) = (tmp_path / "store").glob("*f.npy")
    written = [shard_file]
    for split in ("train", "test"):
        for kind in ("features", "targets", "inds"):
            written.append(tmp_path / "files" / f"rank0_chunk0_{split}_res5_{kind}.npy")
            written[-1].parent.mkdir(exist_ok=True)
            np.save(written[-1], ROWS)
    for path in written[:2]:
        path.write_bytes(b"")
        assert main(["judge", "--features", str(path.parent)]) == 1
        assert f"{path}: cannot be read: No data left in file" in capsys.readouterr().err


def test_lists_of_other_lengths(tmp_path: Path) -> None:
    """Also where as many numbers as before are there, and where a list is missing."""
    given = read_given(_table(tmp_path / "a.parquet", features=[[1.0, 2.0], None]))
    assert torch.as_tensor(given.rows[1:2]).isnan().all()
    for wrong in ([[1.0], [1.0, 2.0, 3.0]], [["a"], ["b"]], [1.0, 2.0]):
        with pytest.raises(DataError, match="a.parquet"):
            read_given(_table(tmp_path / "a.parquet", features=wrong))


def test_a_suite_is_what_needs_no_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*_: Any, **__: Any) -> Outcome:
        return Outcome({"x": 1.0})

    names = dict.fromkeys(ON_FEATURES, computed)
    monkeypatch.setattr(Asked, "protocols", lambda *_: names)
    np.savez(tmp_path / "all.npz", features=ROWS[:60], labels=LABELS[:60])
    path = tmp_path / "all.npz"
    for suite, left_out in (
        ("frozen", ["out_of_set", "view_retrieval", "dense"]),
        ("full", [*ON_IMAGES, "fine-tuning"]),
    ):
        report = judged(tmp_path / f"{suite}.json", path, f"--suite={suite}")
        assert tuple(report["scores"][0]["protocols"]) == ON_FEATURES
        (note,) = [each for each in report["notes"] if "needs the images of a run" in each]
        assert note.split(": ")[1].split(", ") == left_out
    assert main(["judge", "--features", str(path), "--set=LINEAR_PROBE.GROUP_COLUMN=patient"]) == 2
    assert "LINEAR_PROBE.GROUP_COLUMN=patient: expected none" in capsys.readouterr().err
