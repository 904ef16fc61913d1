"""A run does not depend on the order of sets of text, which differs from process to process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command import ROOT, same_weights

# Of these two, `{"lastCLS", "lastPATCH"}` has unlike orders.
SEEDS = ("1", "2")
SMALL = (
    "config.DATA.TRAIN.DATA_LIMIT=32",
    "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=8",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.OPTIMIZER.num_epochs=1",
    "config.LOG_FREQUENCY=1",
)


@pytest.mark.slow
def test_dinov2_in_processes_with_other_hashes(tmp_path: Path) -> None:
    """The final norm serves class tokens and patches: its gradient is a sum of several."""
    command = [sys.executable, "-m", "sslengine", "config=quickstart/dinov2", *SMALL]
    for seed in SEEDS:
        subprocess.run(
            [*command, f"config.CHECKPOINT.DIR={tmp_path / seed}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            check=True,
        )
    one, two = (_losses(tmp_path / seed) for seed in SEEDS)
    assert len(one) == 4
    assert one == two
    assert same_weights(*(tmp_path / seed for seed in SEEDS))


def _losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "step"]
