"""The ten tasks: what is counted and when one fails, and all of them with this environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.ten_tasks import run as module
from tools.ten_tasks.tasks import TASKS, Step, Task

TOOL = Path(__file__).resolve().parents[2] / "tools" / "ten_tasks"


def _done(monkeypatch: pytest.MonkeyPatch, task: Task, *arguments: str) -> int:
    monkeypatch.setattr(module, "TASKS", {"one": task})
    return module.main(list(arguments))


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (Task("x", "photos", [Step("echo no >&2; exit 3")]), "`echo no >&2; exit 3` ended with 3: no"),
        (Task("x", "photos", [], ["false"]), "`false` ended with 1"),
        (Task("x", "photos", [Step("true", commands=10)]), "more than 9 commands"),
        (Task("x", "photos", [], looks=TASKS["cleaning"].looks), ""),
        (Task("x", "photos", [Step("touch a")], looks=TASKS["cleaning"].looks), "left behind: ['a', "),
        (Task("x", "photos", [Step("touch ~/a")], looks=TASKS["cleaning"].looks), "in home: ['a']"),
    ],
)  # fmt: skip
def test_what_fails(
    task: Task, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _done(monkeypatch, task) == int(bool(problem))
    assert (problem or "right") in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_in_this_environment() -> None:
    for name in ("pandas", "numba", "tifffile", "pyarrow", "datasets", "onnxruntime"):
        pytest.importorskip(name)
    command = [sys.executable, str(TOOL / "run.py"), "--seconds", "3000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == len(TASKS) == 10
