"""A rank of a run stops in mid-training: the others name it, all start again, nothing is lost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.command import COMMAND, same_weights, write_config

SILENCE = 5

HARM = """
import os, signal
from sslengine.distributed.ranks import rank
from sslengine.hooks.events import Hook
from sslengine.registry import register_hook

@register_hook("stop_rank_1")
class StopRank1(Hook):
    def on_step(self, task):
        mark = task.run_dir / "stopped"
        if rank() == 1 and task.iteration == 5 and "cut" in str(task.run_dir) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "harm.py").write_text(HARM)
    write_config(
        tmp_path, OPTIMIZER__num_epochs=2, PLUGINS=["harm"], HOOKS__EXTRA=["stop_rank_1"],
        CHECKPOINT__CHECKPOINT_ITER_FREQUENCY=1, DISTRIBUTED__NUM_PROC_PER_NODE=2,
        DATA__TRAIN__BATCHSIZE_PER_REPLICA=2, DISTRIBUTED__HEARTBEAT_SECONDS=SILENCE,
    )  # fmt: skip
    return tmp_path


def _run(project: Path, folder: str, restarts: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, f"config.CHECKPOINT.DIR={folder}", f"config.DISTRIBUTED.MAX_RESTARTS={restarts}"],
        cwd=project, text=True, capture_output=True, timeout=200,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_is_named_and_a_restart_goes_on_bit_by_bit(project: Path) -> None:
    cut = _run(project, "cut", restarts=1)
    assert cut.returncode == 0, cut.stderr
    assert "rank 1 (process" in cut.stderr, cut.stderr
    assert "restarting all ranks: 1 of 1" in cut.stderr
    assert "Traceback" not in cut.stderr
    assert "resumed from" in cut.stdout
    about = json.loads((project / "cut/flight_recorder/rank0.json").read_text().splitlines()[0])
    assert about["rank"] == 0
    assert "in step" in (project / "cut/flight_recorder/rank0.txt").read_text()

    assert _run(project, "whole", restarts=0).returncode == 0
    assert same_weights(project / "cut", project / "whole")
