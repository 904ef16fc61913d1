"""The command for a machine with a GPU, on a CPU."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import gpu_report

A_TEST = r"""
import os, pytest

def test_one(): pass

def test_two(): raise ValueError("not equal\nmore")

@pytest.mark.skip
def test_three(): pass

def test_last():
    os.kill(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid(), 9)
"""


@pytest.mark.parametrize("processes", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_what_ended_is_counted_when_the_run_is_killed(
    processes: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "test_some.py").write_text(A_TEST)
    results = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "tests.gpu.results", *processes, str(tmp_path)]
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"
    } | {"SSLENGINE_RESULTS": str(results), "PYTHONPATH": str(gpu_report.ROOT)}
    subprocess.run(command, env=environment, check=False, timeout=120, capture_output=True)
    counted = gpu_report._counted(results)
    assert (counted["passed"], counted["failed"], counted["skipped"]) == (1, 1, 1)
    ((name, why),) = counted["failures"].items()
    assert name.endswith("test_two")
    assert why == "ValueError: not equal"
    ends = {"tests": [gpu_report.STOPPED]}
    report = gpu_report.Report(gpu_report.machine("cpu"), counted, ends=ends)
    report.write(tmp_path / "docs")
    (page,) = (tmp_path / "docs").glob("*.md")
    assert "1 passed, 1 failed, 1 skipped." in page.read_text()
    assert f"## The tests: {gpu_report.STOPPED}" in page.read_text()
    assert f"- `{name}`: {why}" in page.read_text()


HOLDS = """
import fcntl, sys, time
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write("held")
    file.flush()
    time.sleep(600)
"""


def test_a_part_is_stopped_with_all_its_processes(tmp_path: Path) -> None:
    held = tmp_path / "held"
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS!r}, {str(held)!r}])"
    )
    end = gpu_report._within([sys.executable, "-c", parent], 2 / 60, dict(os.environ))
    assert end == [gpu_report.STOPPED]
    assert held.read_text() == "held"
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits as long as the process lives


GOOD = {"passed": 3, "failed": 0, "skipped": 1, "failures": {}}
ROWS = {"simclr": [{"name": "sslengine", "ms": 1.0}]}
FAILED = {"simclr": [{"name": "sslengine", "error": "OutOfMemoryError: 3 GiB"}]}


@pytest.mark.parametrize(
    ("tests", "bench", "ends", "good"),
    [
        (GOOD, ROWS, {}, True),
        (GOOD, ROWS, {"bench": [gpu_report.STOPPED]}, True),
        (GOOD | {"failed": 1}, ROWS, {}, False),
        (GOOD, FAILED, {}, False),
        (GOOD, ROWS, {"tests": ["ended with status 3", "no memory"]}, False),
        (GOOD | {"passed": 0}, ROWS, {"tests": [gpu_report.STOPPED]}, False),
        (GOOD, {}, {"bench": [gpu_report.STOPPED]}, False),
    ],
)
def test_what_failed_or_did_not_run_is_not_good(
    tests: dict[str, Any], bench: dict[str, Any], ends: dict[str, list[str]], good: bool
) -> None:
    assert gpu_report.Report(gpu_report.machine("cpu"), tests, bench, ends).is_good() == good


def test_parts_that_cannot_start_are_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no module named so; exit 7\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    report = gpu_report.main(["--device", "cpu", "--tiny", "--out", str(tmp_path / "docs")])
    assert not report.is_good()
    (page,) = (tmp_path / "docs").glob("*.md")
    for part in ("tests", "bench"):
        assert (
            f"## The {part}: ended with status 7\n\n```\nno module named so\n```"
            in page.read_text()
        )


def test_tests_for_a_gpu_are_found_in_all_folders() -> None:
    marked = gpu_report._marked()
    assert "tests/checkpoint/test_snapshot.py" in marked
    assert all((gpu_report.ROOT / path).exists() for path in (*marked, *gpu_report.FIRST))


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="sees no CUDA device"):
        gpu_report.main([])


@pytest.mark.slow
def test_the_whole_command_on_a_cpu(tmp_path: Path) -> None:
    gpu_report.main(["--device", "cpu", "--tiny", "--out", str(tmp_path)])
    (data,) = tmp_path.glob("*.json")
    found = json.loads(data.read_text())
    assert (found["tests"]["passed"], found["tests"]["failed"]) == (1, 0)
    assert {row["name"] for row in found["bench"]["simclr"]} >= {"sslengine", "by hand"}
    assert not any("error" in row for rows in found["bench"].values() for row in rows)
    assert [row["name"] for row in found["bench"]["files"]] == [
        "simclr, numba",
        "simclr by hand, torchvision",
        "simclr by hand, lightly",
    ]
