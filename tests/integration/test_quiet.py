"""What a person sees of a short run: what matters, and no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_sixteen_steps_in_under_forty_lines_and_no_warnings(tmp_path: Path) -> None:
    arguments = [
        "config=quickstart/simclr", "config.OPTIMIZER.num_iterations=16", "config.LOG_FREQUENCY=1",
        "config.DATA.TRAIN.DATA_LIMIT=32", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=8",
        "config.DATA.NUM_DATALOADER_WORKERS=2",
    ]  # fmt: skip
    done = subprocess.run(
        # torch 2.6 leaves a temporary folder of its own to the end of the process.
        [sys.executable, "-W", "default", "-W", "ignore:Implicitly cleaning:ResourceWarning", str(ROOT / "tools" / "run_distributed_engines.py"), *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) < 40, "\n".join(lines)
    assert "Warning" not in done.stderr, done.stderr
    text = done.stdout
    for word in ("train 1/4", "step 1/4", "loss", "lr", "images_per_s", "done: 16 steps"):
        assert word in text, text
    assert (tmp_path / "runs/quickstart/simclr/log.txt").exists()
