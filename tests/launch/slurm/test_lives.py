from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sslengine.checkpoint.manifest import Manifest
from sslengine.launch.slurm.lives import begin_life, lives_without_progress


def _save(run: Path, name: str, iteration: int) -> None:
    folder = run / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {}
    if name.endswith(".shards"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "0.distcp").write_text("x")
        files["0.distcp"] = {"bytes": 1, "sha256": ""}
    else:
        (folder / name).write_text("x")
    Manifest(name, 1, "", iteration=iteration, number=iteration, files=files).write(folder)


@pytest.mark.parametrize("name", ["model_iteration{}.torch", "model_iteration{}.0.shards"])
def test_lives_that_leave_no_newer_checkpoint_are_counted(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"

    def live(iteration: int = 0) -> int:
        begin_life(tmp_path, "7", run)
        if iteration:
            _save(run, name.format(iteration), iteration)
        return lives_without_progress(tmp_path, "7", run)

    counts = [live(), live(), live(10), live(), live(), live(20), live(30), live(40)]
    assert counts == [1, 2, 0, 1, 2, 0, 0, 0]
    assert lives_without_progress(tmp_path, "8", run) == 0  # another job


def test_to_save_the_same_iteration_again_is_no_progress(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _save(run, "model_phase0.torch", 10)
    begin_life(tmp_path, "7", run)
    _save(run, "model_iteration10.torch", 10)
    assert lives_without_progress(tmp_path, "7", run) == 1


def test_checkpoints_without_a_readable_manifest_do_not_count(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _save(run, "model_phase0.torch", 10)
    begin_life(tmp_path, "7", run)
    (run / "checkpoints" / "model_phase1.torch").write_text("x")
    (run / "checkpoints" / "model_phase2.torch").write_text("x")
    (run / "checkpoints" / "model_phase2.json").write_text("[")
    assert lives_without_progress(tmp_path, "7", run) == 1


def test_to_submit_a_job_does_not_import_torch() -> None:
    code = "import sys, sslengine.launch.slurm.submit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
