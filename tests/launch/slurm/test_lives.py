from __future__ import annotations

import os
from pathlib import Path

from sslengine.launch.slurm.lives import begin_life, lives_without_progress


def test_lives_that_leave_no_newer_checkpoint_are_counted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)

    def live(saves: int = 0) -> int:
        begin_life(tmp_path, "7", run)
        if saves:
            file = run / "checkpoints" / "model_phase0.torch"
            file.write_text("x")
            os.utime(file, ns=(saves, saves))
        return lives_without_progress(tmp_path, "7", run)

    assert [live(), live(), live(saves=10), live(), live(), live(saves=20)] == [1, 2, 0, 1, 2, 0]
    assert lives_without_progress(tmp_path, "8", run) == 0  # another job
