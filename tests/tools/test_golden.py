"""What four methods computed when tests/golden.json was written, they still compute."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tools.golden import KEPT, ROOT, compare


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    file = tmp_path_factory.mktemp("golden") / "own.json"
    command = [sys.executable, "-m", "tools.golden", "--write", str(file)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=300)
    return json.loads(KEPT.read_text()), json.loads(file.read_text())


@pytest.mark.parametrize("part", ["names", "batches"])
def test_registered_names_and_the_pixels_of_batches_stay(part: str, values: Any) -> None:
    kept, own = values
    assert not [*compare(kept[part], own[part])]


def test_losses_stay(values: Any) -> None:
    kept, own = values
    assert own["losses"].keys() == kept["losses"].keys()
    for name, losses in kept["losses"].items():
        assert own["losses"][name] == pytest.approx(losses, rel=1e-3)


def test_each_difference_is_a_line() -> None:
    one = {"a": {"x": 1, "y": [1, 2]}, "b": "same"}
    other = {"a": {"x": 2, "y": [1, 3]}, "b": "same", "c": 0}
    assert [*compare(one, other)] == [
        "a / x: 1 became 2", "a / y / 1: 2 became 3", "c: null became 0",
    ]  # fmt: skip
