"""The report of `make gpu`, and what it installs, on a CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    names = [row["name"] for row in found["bench"]["files"]]
    assert names == ["simclr, numba", "simclr by hand, torchvision"]


# ---- What `make gpu` installs, on a CPU.


ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    "sslengine", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "numba", "simplejpeg",
)  # fmt: skip
THERE = ("torch", "torchvision", "sslengine")


def required(names: tuple[str, ...]) -> set[str]:
    """These packages, and what they require without extras."""
    left, found = [canonicalize_name(name) for name in names], set()
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        requirements = (Requirement(each) for each in distribution(name).requires or ())
        left += [
            canonicalize_name(each.name)
            for each in requirements
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found


def listed() -> set[str]:
    """The names in the Makefile."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    names = [
        name
        for line in re.findall(r"^(?:PURE|COMPILED) = (.*)$", text, re.MULTILINE)
        for name in line.split()
    ]
    return {canonicalize_name(name.split("==")[0]) for name in names}


def test_every_package_that_torch_does_not_bring_is_listed() -> None:
    try:
        needed = required(NEEDED) - required(THERE[:2]) - set(THERE)
    except PackageNotFoundError as missing:
        pytest.skip(f"not installed: {missing}")
    assert needed <= listed()


@pytest.mark.slow
def test_make_gpu_finds_the_engine_in_its_environment(tmp_path: Path) -> None:
    """As far as a machine without a GPU goes: the report's program starts, and says so."""
    command = ["make", "gpu", f"PYTHON={sys.executable}", f"WHEELS={tmp_path}"]
    done = subprocess.run(
        [*command, f"GPU_VENV={tmp_path / 'made'}",
         f"GPU_REPORT=--out {tmp_path} --device cuda:99"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert "torch sees no CUDA device here" in done.stderr, done.stderr
