"""The table of methods: what is read from a run's folder, what is done again, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import methods_table
from tools.methods_table import BEGIN, END, Job, Result, run_job, table, write_table


def _result(knn: float, linear: float = 50.0) -> Result:
    return Result(knn, linear, 30.0, 40.0, batch=128, step_ms=250.4, memory_mib=512.3)


class _Runs:
    """In the place of the command: writes what a run would write."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def __call__(self, job: Job, more: list[str]) -> float:
        self.calls.append((job.method, more))
        job.folder.mkdir(parents=True, exist_ok=True)
        if more:
            scores = [
                {"features": "trained", "knn": {"20": 81.0}, "linear": 85.0},
                {"features": "untrained", "knn": {"20": 30.0}, "linear": 40.0},
            ]
            (job.folder / "evaluation.json").write_text(json.dumps({"scores": scores}))
        else:
            speeds = (1.0, 100.0, 400.0, 200.0)
            lines = [{"kind": "step", "images_per_s": speed} for speed in speeds]
            lines.append({"kind": "phase", "loss": 1.0})
            text = "\n".join(json.dumps(line) for line in lines)
            (job.folder / "metrics.jsonl").write_text(text)
            config = {"config": {"DATA": {"TRAIN": {"BATCHSIZE_PER_REPLICA": 50}}}}
            (job.folder / "config.yaml").write_text(json.dumps(config))
        return 700.0


def test_a_run_is_trained_judged_and_never_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = _Runs()
    monkeypatch.setattr(methods_table, "_call", runs)
    job = Job("simclr", 3, tmp_path / "simclr_seed3")
    first = run_job(job)
    # Without the first entry the median speed is 200 images a second: 50 of them take 250 ms.
    assert first == Result(81.0, 85.0, 30.0, 40.0, batch=50, step_ms=250.0, memory_mib=700.0)
    assert [bool(more) for _, more in runs.calls] == [False, True]
    assert run_job(job) == first
    assert len(runs.calls) == 2


def test_a_run_that_was_stopped_before_it_was_judged_is_only_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = _Runs()
    monkeypatch.setattr(methods_table, "_call", runs)
    job = Job("simclr", 0, tmp_path / "run")
    run_job(job)
    (job.folder / "evaluation.json").unlink()
    run_job(job)
    assert [more for _, more in runs.calls] == [
        [], ["+config/benchmark/frozen=shapes"], ["+config/benchmark/frozen=shapes"],
    ]  # fmt: skip


def test_a_failed_run_is_told_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods_table, "RUN", ["sh", "-c", "echo out of luck; exit 3"])
    with pytest.raises(SystemExit, match=r"simclr, seed 0, failed:\nout of luck"):
        run_job(Job("simclr", 0, tmp_path / "run"))


def test_best_first_with_mean_and_range() -> None:
    lines = table({"b": [_result(50.0)], "a": [_result(80.0), _result(82.0)]}).splitlines()
    assert (
        lines[2]
        == "| a | 2 | 81.0 (80.0 to 82.0) | 50.0 (50.0 to 50.0) | 30.0 | 40.0 | 128 | 250 | 512 |"
    )
    assert lines[3] == "| b | 1 | 50.0 | 50.0 | 30.0 | 40.0 | 128 | 250 | 512 |"


def test_the_document_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    doc = tmp_path / "methods.md"
    doc.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_table("new", doc)
    write_table("newer", doc)
    assert doc.read_text() == f"before\n{BEGIN}\n\nnewer\n\n{END}\nafter\n"


def test_a_document_without_marks_is_left_alone(tmp_path: Path) -> None:
    doc = tmp_path / "methods.md"
    doc.write_text("mine")
    with pytest.raises(SystemExit, match="no lines"):
        write_table("new", doc)
    assert doc.read_text() == "mine"


def test_a_method_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        methods_table.main(["simklr"])
    assert "no configs/quickstart/simklr.yaml; known:" in capsys.readouterr().err
