"""The command for a machine with a GPU, on a CPU."""

from __future__ import annotations

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


@pytest.mark.slow
def test_the_whole_command_on_a_cpu(tmp_path: Path) -> None:
    gpu_report.main(["--device", "cpu", "--tiny", "--out", str(tmp_path)])
    (data,) = tmp_path.glob("*.json")
    found = json.loads(data.read_text())
    assert (found["tests"]["passed"], found["tests"]["failed"]) == (1, 0)
    assert {row["name"] for row in found["bench"]["simclr"]} >= {"sslengine", "by hand"}
    assert not any("error" in row for rows in found["bench"].values() for row in rows)
    assert [row["name"] for row in found["bench"]["files"]] == [
        "simclr, numba", "simclr by hand, torchvision", "simclr by hand, lightly",
    ]  # fmt: skip
