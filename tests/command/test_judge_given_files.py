"""`sslengine judge --features`: labels in other files, missing labels, files that are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.command.front import main
from sslengine.engines import protocols
from sslengine.errors import ConfigError, DataError
from sslengine.evaluation.given import read_given, read_labels
from sslengine.evaluation.given_labels import Labels, numbered
from sslengine.evaluation.options import ON_FEATURES, ON_IMAGES
from sslengine.evaluation.outcome import Outcome
from sslengine.evaluation.store import Store
from tests.command.test_judge_features import LABELS, NAMES, ROWS, judged

BIRDS = ["great tit", "wren", "", "great tit"]


def _numbers(labels: Labels) -> list[Any]:
    return numbered(labels, labels)[0].tolist()


def _table(path: Path, **columns: Sequence[Any]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_labels_alone(tmp_path: Path) -> None:
    """A line of text is a label; a table or an archive needs no features."""
    (tmp_path / "a.txt").write_text("great tit\r\nwren\n\ngreat tit\n\n", encoding="utf-8-sig")
    (tmp_path / "a.csv").write_text("label\ngreat tit\nwren\n\ngreat tit\n")
    (tmp_path / "quoted.csv").write_text('label\ngreat tit\nwren\n""\ngreat tit\n')
    (tmp_path / "two.csv").write_text("path,label\n0,great tit\n1,wren\n2,\n3,great tit\n")
    np.savez(tmp_path / "a.npz", labels=np.array(BIRDS))
    np.savez(tmp_path / "unnamed.npz", np.array(BIRDS))
    for name in ("a.txt", "a.csv", "quoted.csv", "two.csv", "a.npz", "unnamed.npz"):
        assert _numbers(read_labels(tmp_path / name)) == [0, 1, -1, 0], name
    torch.save({"labels": torch.tensor([2, -1])}, tmp_path / "a.pt")
    torch.save(torch.tensor([2, -1]), tmp_path / "b.pt")
    for name in ("a.pt", "b.pt"):
        assert _numbers(read_labels(tmp_path / name)) == [2, -1]
    (tmp_path / "many.csv").write_text("label_a,label_b\n1,0\n,1\n")
    assert _numbers(read_labels(tmp_path / "many.csv")) == [[1, 0], [-1, 1]]
    (tmp_path / "other.csv").write_text("bird\nwren\n")
    with pytest.raises(DataError, match="no column or array class, label, .*; there is bird"):
        read_labels(tmp_path / "other.csv")
    with pytest.raises(ConfigError, match="expected labels in"):
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
    names, none = Labels("a", np.array(["b", "a"])), Labels("b", np.array([-1, -1]))
    shown = Labels("c", np.array([[1, 0], [0, 1]]))
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


def _damaged(folder: Path) -> dict[str, str]:
    """By the name of the file what is said of it."""
    for ending in ("npy", "npz", "csv", "parquet", "pt"):
        (folder / f"empty.{ending}").touch()
    np.savez(folder / "whole.npz", features=ROWS)
    whole = (folder / "whole.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "zip.npy").write_bytes(whole)
    with (folder / "array.npz").open("wb") as file:
        np.save(file, ROWS)
    (folder / "cut.parquet").write_bytes(b"PAR1 and no more")
    (folder / "header.csv").write_text("label,feature_0\n")
    (folder / "lines.csv").write_text("\n\n")
    (folder / "text.csv").write_text("label,feature_0,feature_1\na,1,2\nb,1,x2\n")
    np.savez(folder / "scalar.npz", features=ROWS, labels=np.array(3))
    return {
        **dict.fromkeys((f"empty.{each}" for each in ("npy", "npz", "csv", "parquet", "pt")),
                        "the file is empty"),
        "cut.npz": "cannot be read: File is not a zip file",
        "zip.npy": "cannot be read: the magic string is not correct",
        "array.npz": "cannot be read: it is one array",
        "cut.parquet": "cannot be read:",
        "header.csv": "expected a row for each image, and it has none",
        "lines.csv": "expected a row for each image, and it has none",
        "text.csv": "column 'feature_1', row 2: expected a number, got 'x2'",
        "scalar.npz": "expected a label, or a row of indicators, for each row",
    }  # fmt: skip


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    for name, told in _damaged(tmp_path).items():
        assert main(["judge", "--features", str(tmp_path / name)]) == 1
        said = capsys.readouterr().err.strip()
        assert said.startswith(f"error: {tmp_path / name}: {told}"), said
        assert "\n" not in said or name == "cut.parquet"
    for name in ("empty.npy", "empty.npz", "cut.npz", "zip.npy"):
        with pytest.raises(DataError, match=name):
            read_labels(tmp_path / name)


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
    for lists in ([[1.0], [1.0, 2.0, 3.0]], [[1.0, 2.0], None]):
        with pytest.raises(DataError, match="'features' have different lengths"):
            read_given(_table(tmp_path / "a.parquet", features=lists))
    for wrong in ([["a"], ["b"]], [1.0, 2.0]):
        with pytest.raises(DataError, match="'features': expected lists of numbers"):
            read_given(_table(tmp_path / "a.parquet", features=wrong))


def test_a_suite_is_what_needs_no_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*_: Any, **__: Any) -> Outcome:
        return Outcome({"x": 1.0})

    monkeypatch.setattr(protocols, "COMPUTE", dict.fromkeys(protocols.COMPUTE, computed))
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
