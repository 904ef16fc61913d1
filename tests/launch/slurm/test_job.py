"""One task of a job, without SLURM: what it calls and how it ends."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sslengine.checkpoint.manifest import Manifest
from sslengine.launch.slurm.job import Job, begin_life, count_lives_without_progress
from tests import warm
from tests.config.recipes import resolved

# In a process of its own: signals, current folder and sys.path are changed.
TASK = """
import multiprocessing, os, pickle, signal, sys
from sslengine import catalog
from sslengine.errors import LaunchError, Preempted
from sslengine.launch import local
from sslengine.launch.slurm import job as module

def run_node(resolved, plan):
    print(plan.node, plan.endpoint, plan.run_id, flush=True)
    ending = sys.argv[2]
    if ending == "killed":                  # as what is shared with ranks, and still referred to
        module.kept = multiprocessing.get_context("spawn").Lock()
    if ending in ("told", "killed"):        # as below an agent, which hears it first
        before = signal.signal(signal.SIGUSR2, lambda *a: before(*a))
        signal.raise_signal(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, before)
        raise Preempted("saved")
    if ending == "early":
        signal.raise_signal(signal.SIGUSR2)
    if ending == "cancelled":
        raise Preempted("saved by SIGTERM")
    if ending == "failed":
        raise LaunchError("no such thing")

local.run_node = run_node
module._SIGNAL_DELAY = 0.1
module._END_DELAY = 0.1
asked = []
module.ask = lambda *command: os._exit(9) if sys.argv[2] == "killed" else asked.append(command)
try:
    pickle.load(open(sys.argv[1], "rb"))()
finally:
    print("asked", *asked)
"""


def _task(
    folder: Path, ending: str, node: int = 0, lives: int = 0
) -> subprocess.CompletedProcess[str]:
    config: dict[str, Any] = {"DISTRIBUTED__NUM_NODES": 2, "SLURM__PORT_ID": 41000}
    job = Job(resolved(**config, CHECKPOINT__DIR="run"), str(folder), str(folder))
    (folder / "job.pkl").write_bytes(pickle.dumps(job))
    (folder / "17_lives.txt").write_text("0\n" * lives)
    environment = {
        **os.environ, "SLURM_JOB_ID": "17", "SLURM_NODEID": str(node),
        "SLURM_JOB_NODELIST": "n[4-5]", "SLURM_RESTART_COUNT": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", TASK, str(folder / "job.pkl"), ending]
    if ending == "killed":  # in a process whose shared memory nobody else clears up
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    return warm.run(command, env=environment, timeout=120)


def test_it_starts_the_ranks_of_its_node(tmp_path: Path) -> None:
    done = _task(tmp_path, "done", node=1)
    assert done.returncode == 0, done.stderr
    assert "launch: SLURM job 17, node 1 of 2, start 2\n1 n4:41001 job 17.1\n" in done.stdout


@pytest.mark.parametrize("ending", ["told", "early"])
def test_told_to_end_the_first_node_puts_the_job_into_the_queue_again(
    tmp_path: Path, ending: str
) -> None:
    done = _task(tmp_path, ending)
    assert done.returncode == os.EX_TEMPFAIL, done.stderr
    assert "asked ('scontrol', 'requeue', '17')" in done.stdout
    assert "job 17 is requeued" in done.stderr
    assert _task(tmp_path, ending, node=1).stdout.splitlines()[-1] == "asked"


def test_ended_by_its_own_requeue_it_leaves_nothing_to_clear_up(tmp_path: Path) -> None:
    done = _task(tmp_path, "killed")
    assert done.returncode == 9
    assert "leaked" not in done.stderr


def test_a_job_that_is_cancelled_stays_so(tmp_path: Path) -> None:
    done = _task(tmp_path, "cancelled")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (os.EX_TEMPFAIL, "asked")


def test_an_error_is_told_in_its_own_words(tmp_path: Path) -> None:
    done = _task(tmp_path, "failed")
    assert done.returncode == 1
    assert done.stderr == "error: no such thing\n"


def test_not_for_ever_without_progress(tmp_path: Path) -> None:
    done = _task(tmp_path, "told", lives=2)
    assert done.stdout.splitlines()[-1] == "asked"
    assert "started 3 times without a new checkpoint" in done.stderr


def test_submitit_may_queue_it_again_before_it_listens_itself(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    before = signal.getsignal(signal.SIGUSR2)
    job = Job(resolved(), str(tmp_path), str(tmp_path))
    assert job.checkpoint().function is job
    assert signal.getsignal(signal.SIGUSR2) is before


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
        return count_lives_without_progress(tmp_path, "7", run)

    counts = [live(), live(), live(10), live(), live(), live(20), live(30), live(40)]
    assert counts == [1, 2, 0, 1, 2, 0, 0, 0]
    assert count_lives_without_progress(tmp_path, "8", run) == 0  # another job


def test_to_save_the_same_iteration_again_is_no_progress(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _save(run, "model_phase0.torch", 10)
    begin_life(tmp_path, "7", run)
    _save(run, "model_iteration10.torch", 10)
    assert count_lives_without_progress(tmp_path, "7", run) == 1


def test_a_job_listens_to_signals_before_it_imports_torch() -> None:
    code = "import sys, sslengine.launch.slurm.job; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
