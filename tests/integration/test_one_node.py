"""Processes of a run: started by others, preempted, lost, and left by their launcher."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sslengine.checkpoint import files
from tests import warm
from tests.integration.command import COMMAND, same_weights, write_config
from tests.ranks import free_port

pytestmark = [
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux tells who listens"),
    pytest.mark.timeout(300),
]

SLOW = """
import time
from sslengine.hooks.events import Hook
from sslengine.registry import register_hook

@register_hook("slow")
class Slow(Hook):
    def on_step(self, task):
        time.sleep(0.2)
"""
PATIENCE = 200  # seconds; to start a rank takes up to twenty on a busy machine


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of two ranks in mid-training, each with a worker."""
    (tmp_path / "slow.py").write_text(SLOW)
    write_config(
        tmp_path, OPTIMIZER__num_epochs=200, PLUGINS=["slow"], HOOKS__EXTRA=["slow"],
        DISTRIBUTED__NUM_PROC_PER_NODE=2, DATA__TRAIN__BATCHSIZE_PER_REPLICA=2, LOG_FREQUENCY=1,
        DATA__NUM_DATALOADER_WORKERS=1, CHECKPOINT__CHECKPOINT_FREQUENCY=1000,
    )  # fmt: skip
    process = subprocess.Popen(
        [*COMMAND, "config.CHECKPOINT.DIR=run"], cwd=tmp_path, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    metrics = tmp_path / "run" / "metrics.jsonl"
    _wait(lambda: process.poll() is not None or (metrics.exists() and metrics.read_text()))
    assert process.poll() is None, process.communicate()[1]
    family = _family(process.pid)
    yield process
    for each in family:
        if _alive(each):
            os.kill(each, signal.SIGKILL)
    process.communicate()


def _wait(condition: object) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.1)


def _family(first: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(status.parent.name))
    found = [first]
    for each in found:
        found.extend(children.get(each, ()))
    return found


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _listening(processes: list[int]) -> list[str]:
    """The addresses on which these listen, in the kernel's digits."""
    links = [link for each in processes for link in Path(f"/proc/{each}/fd").iterdir()]
    sockets = {os.readlink(link) for link in links if link.is_symlink()}
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return [
        row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets
    ]


@pytest.mark.slow
def test_nobody_else_reaches_it_and_it_outlives_its_launcher_only_to_save(
    launcher: subprocess.Popen[str], tmp_path: Path
) -> None:
    family = _family(launcher.pid)
    listening = _listening(family)
    assert len(listening) >= 4  # the agent's store, rank 0's, and gloo's in each rank
    assert set(listening) <= {"0100007F", "0000000000000000FFFF00000100007F"}

    launcher.kill()
    _wait(lambda: not any(_alive(each) for each in family))
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "the process that started the ranks has ended" in log
    (saved,) = (tmp_path / "run" / "checkpoints").glob("model_iteration*.torch")
    step = re.search(r"stopped by SIGTERM after step (\d+)", log)
    assert step is not None
    assert saved.name == f"model_iteration{step.group(1)}.torch"
    assert json.loads(saved.with_suffix(".json").read_text())["iteration"] == int(step.group(1))
    with (tmp_path / "run" / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# ---- Commands that something else started side by side find each other and train as one run.


def _run_both(folder: Path, each: list[tuple[list[str], dict[str, str]]]) -> list[str]:
    """The commands with these arguments and variables at the same time; what they print."""
    write_config(folder, DATA__TRAIN__BATCHSIZE_PER_REPLICA=2, OPTIMIZER__num_epochs=1)
    others = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    started = [
        subprocess.Popen(
            [*COMMAND, *arguments], cwd=folder, env={**others, **variables}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for arguments, variables in each
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], printed
    return [out for out, _ in printed]


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.slow
def test_two_tasks_of_srun_as_nodes(tmp_path: Path) -> None:
    """Each starts the ranks of its node; both nodes are this machine."""
    nodes = ["config.DISTRIBUTED.NUM_NODES=2", "config.DISTRIBUTED.NUM_PROC_PER_NODE=2"]
    task = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "127.0.0.1",
            "MASTER_PORT": str(free_port())}  # fmt: skip
    both = [(nodes, {**task, "SLURM_PROCID": each, "SLURM_NODEID": each}) for each in ("0", "1")]
    first, second = _run_both(tmp_path, both)
    text = "2 nodes of 2 ranks, started by srun; rendezvous at 127.0.0.1"
    assert first.startswith(f"launch: {text}\n")
    assert "4 ranks on cpu" in first
    assert second == ""


# ---- A rank of a run stops in mid-training: the others name it, all start again, nothing is lost.


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


# ---- The command is told to end, by a signal to itself or to all its processes, and continues.


@pytest.fixture(scope="module")
def preempted_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config, and below it the folders of whole runs that are made once."""
    tmp_path = tmp_path_factory.mktemp("preempted_project")
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
    preempted_project: Path, ranks: int, to_all: bool
) -> None:
    whole, cut = f"whole{ranks}", f"cut{ranks}{to_all}"
    if not (preempted_project / whole).exists():
        _finish(preempted_project, whole, ranks)
    process = subprocess.Popen(
        [*_command(cut, ranks), f"config.DATA.NUM_DATALOADER_WORKERS={int(to_all)}"], cwd=preempted_project, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    _wait_for_steps(preempted_project / cut, process)
    if to_all:  # as scancel does: loader workers and their server too
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75, errors
    assert errors.count("The same command resumes from") == 1
    assert "Traceback" not in errors
    progress = files.newest(preempted_project / cut / "checkpoints")[1]["classy_state_dict"][
        "progress"
    ]
    assert 0 < progress["iteration"] < 48
    assert "resumed from" in _finish(preempted_project, cut, ranks)
    assert same_weights(preempted_project / cut, preempted_project / whole)
