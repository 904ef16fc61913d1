"""A run does not depend on the order of sets of text, which differs from process to process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command import ROOT, same_weights
from tests.teachers import needed

RECIPES = sorted(path.stem for path in (ROOT / "configs" / "quickstart").glob("*.yaml"))
# Of these two, `{"lastCLS", "lastPATCH"}` has unlike orders.
SEEDS = ("1", "2")
SMALL = (
    "config.DATA.TRAIN.DATA_LIMIT=32",
    "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=8",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.OPTIMIZER.num_epochs=1",
    "config.LOG_FREQUENCY=1",
)
# In memories, queues and clusters: what fits so few images.
FEW = {
    "deepclusterv2": ("config.LOSS.deepclusterv2_loss.num_clusters=[8,8,8]",),
    "npid++": ("config.LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives=8",),
    "pirl": ("config.LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives=8",),
    "npid": ("config.LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives=8",),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_processes_with_other_hashes(recipe: str, tmp_path: Path) -> None:
    """DINOv2's final norm serves class tokens and patches: its gradient is a sum of several."""
    command = [sys.executable, "-m", "sslengine", f"config=quickstart/{recipe}", *SMALL]
    for seed in SEEDS:
        subprocess.run(
            [*command, *needed(recipe), *FEW.get(recipe, ()),
             f"config.CHECKPOINT.DIR={tmp_path / seed}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            check=True,
        )  # fmt: skip
    one, two = (_losses(tmp_path / seed) for seed in SEEDS)
    assert len(one) == 4
    assert one == two
    assert same_weights(*(tmp_path / seed for seed in SEEDS))


def _losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "step"]
