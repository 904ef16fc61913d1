"""The command is told to end, by a signal to itself or to all its processes, and continues."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sslengine.checkpoint import files
from tests import warm
from tests.integration.command import COMMAND, same_weights, write_config

PATIENCE = 150  # seconds; to start a rank takes up to twenty on a busy machine


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config, and below it the folders of whole runs that are made once."""
    tmp_path = tmp_path_factory.mktemp("project")
    write_config(
        tmp_path, LOG_FREQUENCY=1, OPTIMIZER__num_epochs=12,
        CHECKPOINT__CHECKPOINT_FREQUENCY=-1,
    )  # fmt: skip
    return tmp_path


def _command(folder: str, ranks: int) -> list[str]:
    return [
        *COMMAND, f"config.CHECKPOINT.DIR={folder}", f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}",
        f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA={4 // ranks}",
    ]  # fmt: skip


def _finish(project: Path, folder: str, ranks: int) -> str:
    done = warm.run(_command(folder, ranks), cwd=project, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _wait_for_steps(folder: Path, process: subprocess.Popen[str]) -> None:
    metrics = folder / "metrics.jsonl"
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE:
        if metrics.exists() and len(metrics.read_text().splitlines()) >= 3:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError(f"no step was made in {PATIENCE} seconds")


@pytest.mark.timeout(4 * PATIENCE)
@pytest.mark.parametrize(
    ("ranks", "to_all"),
    [
        (1, False),
        pytest.param(2, True, marks=pytest.mark.slow),  # tests/slurm has two ranks as well
        pytest.param(1, True, marks=pytest.mark.slow),
        pytest.param(2, False, marks=pytest.mark.slow),
    ],
)
def test_status_75_and_the_same_command_goes_on_bit_by_bit(
    project: Path, ranks: int, to_all: bool
) -> None:
    whole, cut = f"whole{ranks}", f"cut{ranks}{to_all}"
    if not (project / whole).exists():
        _finish(project, whole, ranks)
    process = subprocess.Popen(
        [*_command(cut, ranks), f"config.DATA.NUM_DATALOADER_WORKERS={int(to_all)}"], cwd=project, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    _wait_for_steps(project / cut, process)
    if to_all:  # as scancel does: loader workers and their server too
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75, errors
    assert errors.count("The same command resumes from") == 1
    assert "Traceback" not in errors
    progress = files.newest(project / cut / "checkpoints")[1]["classy_state_dict"]["progress"]
    assert 0 < progress["iteration"] < 48
    assert "resumed from" in _finish(project, cut, ranks)
    assert same_weights(project / cut, project / whole)
