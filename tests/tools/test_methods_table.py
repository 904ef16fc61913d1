"""The table of methods: what is read from a run's folder, what is done again, what is written."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sslengine.evaluation.versions import VERSIONS
from tools import methods_runs, methods_table
from tools.methods_runs import Cost, Job, Row, Scores, scores_of
from tools.methods_table import BEGIN, BEGINS, END, Measured, table

SIMCLR = Row("simclr")
ABOUT = {"versions": dict(VERSIONS)}


def _measured(
    *knn: float, cost: Cost | None = None, trunk: str = "ResNet", first: int = 1
) -> dict[str, Any]:
    scores = {
        str(seed): asdict(Scores(value, 50.0, 30.0, 40.0, linear_version=VERSIONS["linear"]))
        for seed, value in enumerate(knn, first)
    }
    budget = {"trunk": trunk, "steps": 624, "images_seen": 79_872}
    return {"scores": scores, "cost": cost and asdict(cost), **budget}


class _Runs:
    """In the place of the command: writes what a run would write."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def __call__(self, job: Job, more: list[str]) -> float:
        self.calls.append((job.row.name, [*job.row.overrides, *more]))
        job.folder.mkdir(parents=True, exist_ok=True)
        if "+config/benchmark/frozen=shapes" in more:
            scores = [
                {"features": "trained", "knn": {"20": 81.0}, "linear": 85.0, "about": ABOUT},
                {"features": "untrained", "knn": {"20": 30.0}, "linear": 40.0},
            ]
            report = {"network": "teacher", "scores": scores}
            (job.folder / "evaluation.json").write_text(json.dumps(report))
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
    monkeypatch.setattr(methods_runs, "call", runs)
    job = Job(SIMCLR, 3, tmp_path / "simclr_seed3")
    first = scores_of(job)
    current = VERSIONS["linear"]
    assert first == Scores(81.0, 85.0, 30.0, 40.0, "teacher", linear_version=current)
    assert [bool(more) for _, more in runs.calls] == [False, True]
    assert scores_of(job) == first
    assert len(runs.calls) == 2


def test_what_is_measured_is_kept_until_the_config_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = _Runs()
    monkeypatch.setattr(methods_runs, "call", runs)
    doc = tmp_path / "methods.md"
    doc.write_text(f"{BEGIN}{END}")
    call = [
        "simclr", "--seeds", "0", "1", "--folder", f"{tmp_path}/runs", "--doc", str(doc),
        "--measured", f"{tmp_path}/methods.json",
    ]  # fmt: skip
    monkeypatch.setattr(methods_table, "code_commit", lambda: "abc")
    assert methods_table.main(call) == 0
    row = "| simclr | 624 | 79,872 | teacher | 1 | 81.0 | 85.0 | 30.0 | 40.0 |"
    assert f"{row} 50 | 250 | 700 | abc |" in doc.read_text()
    made = len(runs.calls)
    assert made == 5  # two seeds trained and judged, and the cost
    assert methods_table.main(call) == 0
    assert len(runs.calls) == made
    monkeypatch.setattr(methods_table, "digest", lambda config, overrides: "another")
    assert Measured(tmp_path / "methods.json").of(SIMCLR)["scores"] == {}


def test_what_a_config_says_counts_wherever_it_says_so(tmp_path: Path) -> None:
    def digest(name: str, text: str) -> str:
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"# @package _global_\n{text}")
        return methods_runs.digest(file)

    one = digest("one", "config: {SEED_VALUE: 1, VERBOSE: True}\n")
    assert one == digest("same", "# a comment\nconfig:\n  VERBOSE:   True\n  SEED_VALUE: 1\n")
    assert one != digest("other", "config: {SEED_VALUE: 2, VERBOSE: True}\n")
    base = digest("base", "config: {VERBOSE: True, SEED_VALUE: 0}\n")
    on_it = digest("on_it", "defaults: [/config/base, _self_]\nconfig: {SEED_VALUE: 1}\n")
    assert one == on_it != base


def test_the_measured_rows_are_those_of_the_configs_as_they_are() -> None:
    measured = Measured(methods_table.MEASURED)
    assert {row.key for row in measured.rows()} == set(json.loads(measured.path.read_text()))


@pytest.mark.parametrize("images", BEGINS)
def test_the_tables_of_the_page_are_those_of_the_measured_rows(images: str) -> None:
    measured = Measured(methods_table.MEASURED)
    _, _, rest = methods_table.DOC.read_text(encoding="utf-8").partition(BEGINS[images])
    found, _, _ = rest.partition(END)
    assert found.strip() == table({row.name: measured.of(row) for row in measured.rows(images)})


@pytest.mark.slow
def test_the_real_command_takes_the_folder_of_a_job(tmp_path: Path) -> None:
    job = Job(Row("simclr"), 0, tmp_path / "simclr_seed0")
    methods_runs.call(job, ["config.DATA.TRAIN.DATA_LIMIT=128", "config.OPTIMIZER.num_epochs=1"])
    assert (job.folder / "checkpoints" / "checkpoint.torch").exists()


def test_a_seed_that_hyper_parameters_were_chosen_on_is_not_in_the_mean() -> None:
    both, alone = _measured(10.0, 70.0, 80.0, first=0), _measured(10.0, first=0)
    assert "| 1, 2 | 75.0 (70.0 to 80.0) |" in table({"a": both})
    assert "| 0 ‡ | 10.0 |" in table({"a": alone})
