from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.config.recipes import recipe

ROOT = Path(__file__).resolve().parents[2]


def _chaos(folder: Path, *arguments: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    (folder / "configs").mkdir()
    tree = {"config": recipe(LOG_FREQUENCY=1, **changes)}
    (folder / "configs" / "tiny.yaml").write_text("# @package _global_\n" + yaml.safe_dump(tree))
    tool = str(ROOT / "tools" / "chaos.py")
    command = [sys.executable, tool, "config=tiny", "--folder", "chaos", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_the_series_kills_every_method() -> None:
    """But distillation, which needs a trained teacher."""
    tool = ast.parse((ROOT / "tools" / "chaos.py").read_text())
    (methods,) = (
        ast.literal_eval(each.value)
        for each in tool.body
        if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == "METHODS" and each.value
    )
    quickstarts = {path.stem for path in (ROOT / "configs" / "quickstart").glob("*.yaml")}
    assert quickstarts - methods.keys() == {"distillation"}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_run_survives(tmp_path: Path, ranks: int) -> None:
    done = _chaos(
        tmp_path, "--kills", "4", "--tests", f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}",
        f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA={4 // ranks}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[:2] == ["run", "4"]


FORGETFUL = """
import time, torch
from sslengine.hooks.events import Hook

class Forgetful(Hook):
    '''Has a state that it does not save: how many steps were made in this life.'''
    def on_start(self, task):
        self.made = 0
    def on_update(self, task):
        time.sleep(0.3)  # for the kills to fall among the steps, not before the first
        self.made += 1
        with torch.no_grad():
            next(iter(task.base_model.parameters())).mul_(1 + 0.01 * self.made)
"""


@pytest.mark.slow
def test_a_state_that_is_not_saved_is_found(tmp_path: Path) -> None:
    """The tool can say no."""
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    done = _chaos(
        tmp_path, "--kills", "12",
        OPTIMIZER__num_epochs=4, HOOKS__EXTRA=["forgetful:Forgetful"],
    )  # fmt: skip
    assert done.returncode == 1
    assert "FAILED:" in done.stderr
    assert "instead of" in done.stderr or "differs" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_thousand_kills_of_all_methods(tmp_path: Path) -> None:
    """What docs/reliability.md reports. Two hours on two cores."""
    command = [sys.executable, str(ROOT / "tools" / "chaos.py"), "--series", "--kills", "1000"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "chaos")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert sum(int(line.split()[-6]) for line in done.stdout.splitlines()[1:]) >= 1000
