from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sslengine.monitor.history import read
from sslengine.monitor.writers import JsonLinesWriter, Record, RunPlace


def _step(iteration: int, **values: Any) -> Record:
    return Record("step", iteration, 0, "train", values or {"loss": float(iteration)})


def test_rows_by_kind_and_split(tmp_path: Path) -> None:
    writer = JsonLinesWriter(RunPlace(tmp_path, 0))
    writer.write(_step(1, loss=2.0, tau=math.nan))
    writer.write(Record("phase", 1, 0, "train", {"loss": 2.0}))
    writer.write(Record("phase", 1, 0, "test", {"acc": {"top_1": {"0": 50.0}}}))
    (step,) = read(tmp_path)
    assert (step["kind"], step["loss"]) == ("step", 2.0)
    assert math.isnan(step["tau"])
    assert [row["split"] for row in read(tmp_path, "phase")] == ["train", "test"]
    (test,) = read(str(tmp_path), "phase", "test")
    assert test["acc.top_1.0"] == 50.0
    assert len(read(tmp_path, kind=None)) == 3


def test_a_run_that_was_killed_is_read_as_if_it_were_not(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"kind": "step", "split": "train", "iteration": i, "epoch": 0, "loss": loss}
        for i, loss in ((1, 1.0), (2, 2.0), (4, 4.0), (3, 30.0), (4, 40.0))
    ]
    phase = {"kind": "phase", "split": "train", "iteration": 4, "epoch": 0}
    lines = [*lines[:3], phase, *lines[3:], phase]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "st'
    (tmp_path / "metrics.jsonl").write_bytes(text.encode() + b"\xff")
    rows = read(tmp_path, kind=None)
    told = [(row["kind"], row["iteration"], row.get("loss")) for row in rows]
    assert told == [
        ("step", 1, 1.0), ("step", 2, 2.0), ("step", 3, 30.0), ("step", 4, 40.0),
        ("phase", 4, None),
    ]  # fmt: skip


def test_a_phase_that_was_tested_twice_is_there_once(tmp_path: Path) -> None:
    """After a kill that followed a test phase."""

    def phase(split: str, iteration: int, loss: float) -> dict[str, Any]:
        place = {"kind": "phase", "split": split, "iteration": iteration, "epoch": 0}
        return {**place, "loss": loss}

    lines = [
        phase("train", 12, 1.0), phase("test", 12, 2.0), phase("test", 12, 3.0),
        phase("train", 24, 4.0), phase("test", 24, 5.0),
        phase("test", 12, 6.0),  # a run that only tests the checkpoint of step 12
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = read(tmp_path, "phase", "test")
    assert [(row["iteration"], row["loss"]) for row in rows] == [(12, 6.0), (24, 5.0)]


@pytest.mark.parametrize("ended", ["exception", "end"])
def test_how_a_run_ended_is_dropped_where_it_was_continued(tmp_path: Path, ended: str) -> None:
    def line(kind: str, iteration: int) -> str:
        place = {"kind": kind, "split": "train", "iteration": iteration, "epoch": 0}
        return json.dumps(place) + "\n"

    path = tmp_path / "metrics.jsonl"
    path.write_text(line("step", 2) + line("step", 4) + line(ended, 5))
    assert [row["kind"] for row in read(tmp_path, None)] == ["step", "step", ended]
    path.write_text(path.read_text() + line("step", 6))
    assert [row["iteration"] for row in read(tmp_path, None)] == [2, 4, 6]
