"""The commands of docs/distributed.md, as they stand there, as far as one machine goes.

What is shortened is what trains: each run makes two steps. Both nodes of torchrun are this one.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command import ROOT
from tests.ranks import free_port

PATIENCE = 300  # seconds
DOC = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
COMMANDS = [
    block.replace("\\\n", " ").strip() for block in re.findall(r"```bash\n(.*?)```", DOC, re.DOTALL)
]
SHORT = [
    "config.OPTIMIZER.num_iterations=2", "config.DATA.TRAIN.DATA_LIMIT=64",
    "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=8", "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.LOG_FREQUENCY=1",
]  # fmt: skip
LAUNCHED = {
    "one process": 0,
    "2 ranks on this node": 1,
    "2 ranks, started by torchrun": 2,
    "4 ranks, started by torchrun": 3,
}


def _start(line: str, folder: Path, place: str) -> subprocess.Popen[str]:
    words = shlex.split(line)
    python = {
        "python": [sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    }
    words = [*python[words[0]], *words[1:], *SHORT, f"config.CHECKPOINT.DIR={folder}"]
    words = [word.replace("node1:29500", place) for word in words]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return subprocess.Popen(
        words, cwd=ROOT, env=outside, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
# Quick ones: test_joined.py, tests/launch/test_cli.py and, below torchrun, tests/python/test_passes.py.
@pytest.mark.parametrize(("says", "number"), list(LAUNCHED.items()))
def test_the_command_trains(says: str, number: int, tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}"
    nodes = 2 if "--nnodes=2" in COMMANDS[number] else 1
    started = [_start(COMMANDS[number], tmp_path, place) for _ in range(nodes)]
    try:
        printed = [process.communicate(timeout=PATIENCE)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), printed
    assert f"launch: {says}" in "".join(printed)
    metrics = (tmp_path / "metrics.jsonl").read_text()
    assert metrics.count('"kind": "step"') == 2


def test_all_commands_that_train_are_tried() -> None:
    training = [number for number, text in enumerate(COMMANDS) if "run_distributed" in text]
    assert training == sorted(LAUNCHED.values())


def test_the_other_commands_exist() -> None:
    for text in re.findall(r"`(tools/\S+\.py)", DOC) + re.findall(r"python (tools/\S+\.py)", DOC):
        assert (ROOT / text).is_file(), text
