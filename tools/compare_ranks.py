"""Compare the losses of a run on one rank, on two with DDP, on two sharded, and accumulated.

    python tools/compare_ranks.py                       SimCLR, SwAV and DINO, eight steps each
    python tools/compare_ranks.py simclr --steps 20

All have the same images in the same order, the same initial weights and the same global batch, also
in batch norms. The first three columns must agree up to rounding. If a batch is accumulated in
halves, a loss that compares images compares half as many: that is another loss, which
gradcache_train_step avoids.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

COMMAND = Path(__file__).with_name("run_distributed_engines.py")
METHODS = ("simclr", "swav", "dino")
BATCH = 32
SHAPES: dict[str, tuple[str, ...]] = {
    "1 rank": (),
    "2 ranks, DDP": ("config.DISTRIBUTED.NUM_PROC_PER_NODE=2",),
    "2 ranks, shards": (
        "config.DISTRIBUTED.NUM_PROC_PER_NODE=2",
        "config.TRAINER.TASK_NAME=self_supervision_fsdp_task",
    ),
    "accumulated": ("config.OPTIMIZER.accumulate=2",),
}


def overrides(shape: str, steps: int) -> list[str]:
    """The overrides of a quickstart. A batch has two halves, accumulated or one per rank."""
    halves = 1 if shape == "1 rank" else 2
    micro_steps = steps * (2 if shape == "accumulated" else 1)
    return [
        "config.LOG_FREQUENCY=1",
        "config.DATA.NUM_DATALOADER_WORKERS=0",
        f"config.DATA.TRAIN.DATA_LIMIT={BATCH * steps}",
        f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA={BATCH // halves}",
        f"config.OPTIMIZER.num_iterations={micro_steps}",
        "config.MODEL.CHANNELS_LAST=false",
        "config.MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN=true",
        "config.MODEL.SYNC_BN_CONFIG.GROUP_SIZE=0",
        "config.HOOKS.COLLAPSE_SIGNS=false",
        *SHAPES[shape],
    ]


def losses(method: str, shape: str, steps: int, folder: Path) -> list[float]:
    """One loss per optimizer step: the mean of its two halves."""
    command = [sys.executable, str(COMMAND), f"config=quickstart/{method}"]
    command += [*overrides(shape, steps), f"config.CHECKPOINT.DIR={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    found = [line["loss"] for line in lines if line["kind"] == "step"]
    each = len(found) // steps
    return [sum(found[i : i + each]) / each for i in range(0, len(found), each)]


def table(method: str, columns: dict[str, list[float]]) -> Table:
    """A row per step, and the largest relative difference from the first column."""
    made = Table("step", *columns, title=method, box=None, pad_edge=False)
    first = next(iter(columns.values()))
    for step, row in enumerate(zip(*columns.values(), strict=True), start=1):
        made.add_row(str(step), *(f"{loss:.6f}" for loss in row))
    apart = [
        max(abs(a - b) / abs(b) for a, b in zip(column, first, strict=True))
        for column in columns.values()
    ]
    made.add_row("apart", *(f"{each:.1e}" for each in apart))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", default=METHODS, help="quickstarts")
    parser.add_argument("--steps", type=int, default=8)
    given = parser.parse_args(arguments)
    console = Console()
    for method in given.methods:
        with tempfile.TemporaryDirectory(prefix="compare_ranks_") as folder:
            console.print(
                table(
                    method,
                    {
                        shape: losses(method, shape, given.steps, Path(folder) / str(number))
                        for number, shape in enumerate(SHAPES)
                    },
                )
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
