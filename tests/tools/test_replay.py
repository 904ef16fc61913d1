from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from tests import warm
from tests.config.recipes import recipe

TOOL = Path(__file__).resolve().parents[2] / "tools" / "replay.py"


def _replay(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return warm.run([sys.executable, str(TOOL), *arguments], cwd=cwd)


def test_a_runs_own_config_is_what_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    tree = {"config": recipe()}
    (tmp_path / "configs" / "tiny.yaml").write_text("# @package _global_\n" + yaml.safe_dump(tree))
    # In a process of its own, which knows no sections that other tests have declared.
    command = [sys.executable, "-m", "sslengine", "config=tiny", "config.CHECKPOINT.DIR=run"]
    assert warm.run(command, cwd=tmp_path).returncode == 0
    (tmp_path / "run" / "checkpoints" / "model_final_checkpoint_phase1.torch").unlink()
    done = _replay("run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run: replay from step 5, model_phase0.torch" in done.stdout
    assert "steps 5 to 8: all values are finite." in done.stdout


def test_a_folder_that_is_no_runs(tmp_path: Path) -> None:
    done = _replay("nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing has no config.yaml: it is not the folder of a run" in done.stderr


def test_code_that_a_folders_config_names_is_not_run_unasked(tmp_path: Path) -> None:
    """As a process; see tests/integration/test_untrusted.py for all that may be named."""
    (tmp_path / "evil.py").write_text("open('code_was_run', 'w')")
    (tmp_path / "run").mkdir()
    tree = recipe(PLUGINS=["evil"])
    (tmp_path / "run" / "config.yaml").write_text(
        "# @package _global_\n" + yaml.safe_dump({"config": tree})
    )
    done = _replay("run", cwd=tmp_path)
    assert done.returncode == 2
    expected = "error: run/config.yaml: config.PLUGINS.0: 'evil' names Python code"
    assert done.stderr.startswith(expected), done.stderr
    assert "--trust-config" in done.stderr
    assert not (tmp_path / "code_was_run").exists()
    _replay("run", "--trust-config", "config.LOSS.name=nothing", cwd=tmp_path)
    assert (tmp_path / "code_was_run").exists()
