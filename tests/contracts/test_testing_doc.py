"""docs/testing.md: what it says, and the test that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sslengine.testing.contract import SUITES
from sslengine.testing.promises import promises
from sslengine.testing.run_suite import RunSuite

DOC = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
METHOD = """
from torch import nn

class MyLoss(nn.Module):
    def __init__(self, weight=1.0):
        super().__init__()
        self.weight, self.steps = weight, 0

    def forward(self, output, target):
        self.steps += self.training
        one, two = output.chunk(2)
        return self.weight * (one - two).square().mean()
"""


def test_every_kind_and_every_promise_is_there() -> None:
    text = DOC.read_text()
    assert [kind for kind in SUITES if f"`{kind}`" not in text] == []
    shipped = {name for suite in SUITES.values() for name in promises(suite)}
    told = {name for name in re.findall(r"`([a-z_0-9]+)`", text) if name.count("_") > 1}
    assert shipped <= set(re.findall(r"`([a-z_0-9]+)`", text))
    assert told - shipped == set()
    of_runs = promises(RunSuite).items()
    assert all(always != (f"`{name}` (`also`)" in text) for name, always in of_runs)


@pytest.mark.slow
def test_the_test_that_it_shows(tmp_path: Path) -> None:
    """It finds that the steps are counted outside the state dict, and nothing else."""
    (code,) = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    (tmp_path / "my_loss.py").write_text(METHOD)
    (tmp_path / "test_my_loss.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_loss.py", "-k", "finite or resumes or tests"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{DOC.parents[1]}"},
    )  # fmt: skip
    failed = re.findall(r"^FAILED .*\[(\w+)\]", done.stdout, re.MULTILINE)
    assert failed == ["resumes_bit_exactly"], done.stdout
    assert "MyLoss.steps: not in the state dict" in done.stdout
