"""Runs side by side: what differs first, sweeps, what is no run, differences on the same images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sslengine.command.front import main
from sslengine.monitor.run_facts import read_facts
from sslengine.report.comparison import compare_runs, keys_that_differ, origins_in
from sslengine.report.summary import read, runs_in
from tests.command.photos import write_photos
from tests.monitor.test_verdict import TINY

RATE = "OPTIMIZER.param_schedulers.lr.peak"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rates, one more run, a start that failed before it had a config, and a file."""
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(runs.parent)
        keys = [f"config.{key}={value}" for key, value in TINY.items()]
        given = ["config=quickstart/simclr", *keys]
        assert (
            main([*given, f"config.{RATE}=0.002,0.0002", "config.CHECKPOINT.DIR=runs/sweep"]) == 0
        )
        assert main([*given, "config.SEED_VALUE=3", "config.CHECKPOINT.DIR=runs/other"]) == 0
    (runs.parent / "runs" / "failed").mkdir()
    (runs.parent / "runs" / "notes.txt").write_text("mine")
    return runs.parent / "runs"


@pytest.fixture(scope="module")
def judged(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    photos = write_photos(tmp_path_factory.mktemp("photos") / "photos", 20)
    for run in ("sweep/sweep_0", "sweep/sweep_1"):
        assert main(["judge", str(sweep / run), f"--train={photos}", f"--val={photos}"]) == 0
    return sweep


def test_a_sweep_ends_with_its_table_and_its_page(sweep: Path) -> None:
    found = json.loads((sweep / "sweep" / "sweep.json").read_text())
    assert [each["differs"][RATE] for each in found["rows"]] == ["0.002", "0.0002"]
    assert {each["status"] for each in found["rows"]} == {"complete"}
    assert (sweep / "sweep" / "report.html").stat().st_size > 10_000


def test_what_is_no_run_is_passed_over_and_sweeps_are_opened(sweep: Path) -> None:
    found, notes = runs_in(sorted(sweep.glob("*")))
    names = [each.relative_to(sweep).as_posix() for each in found]
    assert names == ["other", "sweep/sweep_0", "sweep/sweep_1"]
    assert len(notes) == 2


def test_a_report_takes_a_glob(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    page = f"--out={tmp_path / 'page.html'}"
    assert main(["report", *map(str, sorted(sweep.glob("*"))), page]) == 0
    shown = capsys.readouterr()
    assert "sweep_1" in shown.out
    assert (shown.out + shown.err).count("passed over") == 2


def test_keys_that_were_typed_differ_first_and_what_follows_from_them_is_left_out(
    sweep: Path,
) -> None:
    runs = [read_facts(sweep / name) for name in ("sweep/sweep_0", "sweep/sweep_1", "other")]
    assert keys_that_differ(runs[:2]) == [RATE]
    assert {*keys_that_differ(runs)} == {RATE, "SEED_VALUE"}
    origins = origins_in(sweep / "other" / "config.yaml")
    assert origins["SEED_VALUE"] == "command line"
    assert origins["OPTIMIZER.num_epochs"] == "command line"


def test_a_row_fits_into_80_columns(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["report", str(sweep / "sweep")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 100  # the last has the page's place
    (row,) = (line for line in lines if line.startswith("sweep_0"))
    assert row.split()[:2] == ["sweep_0", "0.002"]
    assert len(row.rstrip()) <= 80


def test_differences_are_of_the_same_images(judged: Path) -> None:
    found = compare_runs([read(judged / "sweep" / name) for name in ("sweep_0", "sweep_1")])
    for metric, table in found.differences.items():
        ((none, first), (second, _)) = table
        assert none is None
        assert first is not None
        assert second is not None
        assert first[0] == pytest.approx(-second[0])
        values = [next(each.value for each in row.scores if each.metric == metric)
                  for row in found.rows]  # fmt: skip
        assert first[0] == pytest.approx(values[0] - values[1])
    assert found.swept == RATE
    other: Any = compare_runs([read(judged / name) for name in ("sweep/sweep_0", "other")])
    assert other.differences["linear"][0][1] is None
    assert any("other" in each for each in other.notes)


def test_a_page_of_several_runs(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    runs = [str(judged / "sweep"), str(judged / "other")]
    assert main(["report", *runs, f"--out={page}"]) == 0
    assert str(page) in capsys.readouterr().out
    assert "sweep_1" in page.read_text()
