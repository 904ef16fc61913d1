"""The command for a machine with a GPU, on a CPU."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

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
    report = gpu_report.Report(gpu_report.machine("cpu"), counted | {"end": "; stopped"})
    report.write(tmp_path / "docs")
    (page,) = (tmp_path / "docs").glob("*.md")
    assert "1 passed, 1 failed, 1 skipped; stopped" in page.read_text()
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
    assert "stopped after" in end
    assert held.read_text() == "held"
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits as long as the process lives


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
