"""ruff and mypy (strict), as tests."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest


def torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in version("torch").split("+")[0].split(".")[:2])


ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        pytest.param(
            ["mypy"],  # strict, by pyproject.toml
            marks=pytest.mark.skipif(
                torch_version() < (2, 14), reason="older libraries tell less of their types"
            ),
            id="mypy",
        ),
    ],
    ids=" ".join,
)
def test_nothing_to_complain_about(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
