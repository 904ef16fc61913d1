from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from sslengine.monitor.csv_file import CsvWriter
from sslengine.monitor.writers import Record


def _record(iteration: int, **values: Any) -> Record:
    return Record("step", iteration, 0, "train", values or {"loss": 1.0})


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.csv"
    CsvWriter(path).write(_record(3, loss=0.1, note="a, b"))
    assert path.read_text() == 'kind,split,iteration,epoch,loss,note\nstep,train,3,0,0.1,"a, b"\n'


def test_columns_that_appear_later_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    writer.write(_record(1, loss=1.0))
    writer.write(_record(2, loss=2.0, loss_mean=1.5))
    writer.write(Record("phase", 2, 0, "test", {"acc": {"top_1": {"0": float("nan")}}}))
    writer.write(_record(3, loss=3.0))
    rows = _rows(path)
    names = ["kind", "split", "iteration", "epoch", "loss", "loss_mean", "acc.top_1.0"]
    assert list(rows[0]) == names
    assert [list(row.values())[4:] for row in rows] == [
        ["1.0", "", ""],
        ["2.0", "1.5", ""],
        ["", "", "nan"],
        ["3.0", "", ""],
    ]


def test_a_resumed_run_has_each_step_once_and_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = CsvWriter(path)
    first.write(_record(1, loss=1.0, later=0.5))
    for iteration in (2, 3):
        first.write(_record(iteration))
    with path.open("a") as file:
        file.write("step,tra")  # killed while it wrote
    second = CsvWriter(path, iteration=2)
    assert [row["iteration"] for row in _rows(path)] == ["1", "2"]
    for iteration in (3, 4):
        second.write(_record(iteration, other=2.0))
    assert [row["iteration"] for row in _rows(path)] == ["1", "2", "3", "4"]
    assert [row["later"] for row in _rows(path)] == ["0.5", "", "", ""]
    assert [row["other"] for row in _rows(path)] == ["", "", "2.0", "2.0"]


def test_a_full_disk_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    writer.write(_record(1))
    with monkeypatch.context() as full:

        def opened(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(Path, "open", opened)
        full.setattr("sslengine.monitor.csv_file.write_whole", opened)
        writer.write(_record(2))
        writer.write(_record(3, new=1.0))
    with path.open("a") as file:
        file.write("step,train")  # as far as it came
    writer.write(_record(4))
    assert [row["iteration"] for row in _rows(path)] == ["1", "2", "3", "4"]
    assert caplog.text.count("could not be written: No space left") == 1


@pytest.mark.parametrize("text", ["", "not a table", "kind,split\n"])
def test_a_file_that_says_nothing_is_begun_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    CsvWriter(path).write(_record(1))
    assert [(row["iteration"], row["loss"]) for row in _rows(path)] == [("1", "1.0")]


def test_the_file_is_cut_at_the_mark_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    writer.write(_record(1, loss=1.0))
    writer.write(Record("phase", 2, 0, "train", {"loss": 2.0}))
    saved, mark = path.read_bytes(), writer.marks()["metrics.csv"]
    writer.write(Record("phase", 2, 0, "test", {"loss": 3.0}))  # then it was killed
    again = CsvWriter(path, 2, mark)
    assert path.read_bytes() == saved
    again.write(Record("phase", 2, 0, "test", {"loss": 3.0}))
    assert [row["split"] for row in _rows(path)] == ["train", "train", "test"]
    assert "test,2,0,3.0" in (tmp_path / "superseded" / "metrics.csv").read_text()


def test_columns_that_came_after_the_checkpoint_go_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    writer.write(_record(1, note="a, b"))
    saved, mark = path.read_bytes(), writer.marks()["metrics.csv"]
    writer.write(_record(1, accuracy=50.0))
    writer.write(_record(2, loss=2.0))
    again = CsvWriter(path, 1, mark)
    assert path.read_bytes() == saved
    assert again.marks()["metrics.csv"] == mark
    assert "step,train,1,0,,50.0," in (tmp_path / "superseded" / "metrics.csv").read_text()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_lines_that_are_gone_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    for iteration in (1, 2):
        writer.write(_record(iteration))
    mark = writer.marks()["metrics.csv"]
    path.write_bytes(path.read_bytes()[:-5])
    CsvWriter(path, 2, mark)
    assert "metrics.csv: it has 65 bytes, and had 70 at the checkpoint" in caplog.text
    assert [row["iteration"] for row in _rows(path)] == ["1"]
