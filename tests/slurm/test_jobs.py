"""Jobs on a real SLURM: submitted, told to end, ended from outside, and what they leave.

A node is ended last, when no other job needs it.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.command import same_weights
from tests.slurm.user import PATIENCE, User

pytestmark = pytest.mark.timeout(3 * PATIENCE)

TWO_RANKS = "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=2"
TWO_NODES = ("config.DISTRIBUTED.NUM_NODES=2", TWO_RANKS)
SLOW = "config.HOOKS.EXTRA=[{name:slow_first_life,seconds:3}]"
STEPS = 32


@pytest.fixture(scope="module")
def undisturbed(user: User) -> Path:
    """The same run without SLURM, two ranks on this machine."""
    done = user.command(
        "config.CHECKPOINT.DIR=undisturbed", TWO_RANKS, "config.DISTRIBUTED.NUM_PROC_PER_NODE=2"
    )
    assert done.returncode == 0, done.stderr
    assert "launch: 2 ranks on this node" in done.stdout
    assert len(user.losses("undisturbed")) == STEPS
    return user.folder / "undisturbed"


def test_a_job_trains_and_the_command_waits(user: User) -> None:
    done = user.command(
        "config.CHECKPOINT.DIR=one_node", "config.SLURM.USE_SLURM=true", "config.SLURM.WAIT=true",
        "config.OPTIMIZER.num_epochs=1", "config.DATA.NUM_DATALOADER_WORKERS=0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 rank on cpu" in done.stdout  # of the job's log
    assert len(user.losses("one_node")) == STEPS // 2


@pytest.mark.slow
def test_two_nodes_train_and_the_command_waits(user: User, undisturbed: Path) -> None:
    done = user.command(
        "config.CHECKPOINT.DIR=two_nodes", "config.SLURM.USE_SLURM=true", "config.SLURM.WAIT=true",
        *TWO_NODES,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 ranks on cpu" in done.stdout  # of the job's log
    assert f"done: {STEPS} steps" in done.stdout
    assert "tail -n +1 -F" in done.stdout
    assert "COMPLETED" in done.stderr
    assert user.losses("two_nodes") == user.losses("undisturbed")
    assert same_weights(user.folder / "two_nodes", undisturbed)


@pytest.mark.slow
def test_a_waiting_job_does_not_see_what_is_edited(user: User) -> None:
    job = user.submit(
        "config.CHECKPOINT.DIR=edited", "config.SLURM.ADDITIONAL_PARAMETERS={hold: true}"
    )
    plugin = user.folder / "slow_first_life.py"
    text = plugin.read_text()
    plugin.write_text("raise SystemExit('edited after the job was submitted')")
    try:
        user.cluster.run("scontrol", "release", job)
        state = user.wait_for_state(job, "COMPLETED", "FAILED")["JobState"]
    finally:
        plugin.write_text(text)
    assert state == "COMPLETED", user.job_log(job)
    (code,) = user.folder.glob(f"jobs/*/{job}_submission.sh")
    ran = (user.folder / "edited" / "environment.json").read_text()
    assert str(code.parent / "code") in ran  # PYTHONPATH


@pytest.mark.slow
def test_a_sweep_is_an_array_with_a_folder_for_each(user: User) -> None:
    job = user.submit(
        "config.CHECKPOINT.DIR=sweep", "config.SEED_VALUE=1,2,3", "config.OPTIMIZER.num_epochs=1"
    )
    for index in range(3):
        state = user.wait_for_state(f"{job}_{index}", "COMPLETED", "FAILED")
        assert state["JobState"] == "COMPLETED", user.job_log(job)
    losses = [user.losses(f"sweep/sweep_{index}") for index in range(3)]
    assert [len(each) for each in losses] == [16, 16, 16]
    assert len({each[0] for each in losses}) == 3  # seeds of their own


@pytest.mark.slow
def test_scancel_saves_and_is_the_end(user: User) -> None:
    job = user.submit("config.CHECKPOINT.DIR=cancelled", SLOW)
    user.wait_for_steps(job, "cancelled")
    user.cluster.run("scancel", job)
    shown = user.wait_for_state(job, "CANCELLED", "COMPLETED", "FAILED", "PENDING")
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0")
    until = time.monotonic() + PATIENCE
    while not (found := list((user.folder / "cancelled/checkpoints").glob("model_iter*.torch"))):
        assert time.monotonic() < until, user.job_log(job)
        time.sleep(0.2)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["config.SLURM.PARTITION=spaer"], 1, "config.SLURM.PARTITION: spaer"),
        (["config.SLURM.CONSTRAINT=no_such_feature"], 1, "sbatch refuses the job"),
        pytest.param(["config.SLURM.MEM_GB=250"], 1, "config.SLURM.MEM_GB: 250", marks=pytest.mark.slow),
        pytest.param(["config.SEED_VALUE=1,2", "config.SLURM.PARTITION=main,spare"], 2, "config.SLURM: the runs of a sweep", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_and_leaves_nothing(
    user: User, arguments: list[str], status: int, message: str
) -> None:
    done = user.command(
        "config.SLURM.USE_SLURM=true", "config.SLURM.LOG_FOLDER=refused/jobs", *arguments
    )
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("Invalid feature") <= 1
    assert not list(user.folder.glob("refused/jobs/*"))


@pytest.mark.slow
def test_a_job_that_fails_says_why_and_the_waiting_command_too(user: User) -> None:
    done = user.command(
        "config.SLURM.USE_SLURM=true", "config.SLURM.WAIT=true", "config.DATA.TRAIN.DATA_LIMIT=2",
        "config.CHECKPOINT.DIR=failed",
    )  # fmt: skip
    assert done.returncode == 1
    assert "fewer than the global batch of 4" in done.stdout  # the job's log
    assert "FAILED" in done.stderr


@pytest.mark.slow
def test_at_the_time_limit_it_is_saved_and_goes_on_under_the_same_id(
    user: User, undisturbed: Path
) -> None:
    job = user.submit(
        "config.CHECKPOINT.DIR=over_time", SLOW, *TWO_NODES, "config.SLURM.SIGNAL_SECONDS=110"
    )
    user.wait_for_steps(job, "over_time")  # however long a busy machine takes to get there
    user.limit_time(job, seconds_from_now=110)
    user.wait_for_restart(job)
    user.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    shown = user.wait_for_state(job, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")
    log = user.job_log(job)
    assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "1"), log
    assert f"job {job} is requeued" in log
    assert "resumed from" in log
    assert "leaked" not in log
    assert user.losses("over_time") == user.losses("undisturbed")
    assert same_weights(user.folder / "over_time", undisturbed)


@pytest.mark.slow
def test_a_job_whose_node_is_lost_starts_again_elsewhere(user: User) -> None:
    job = user.submit("config.CHECKPOINT.DIR=lost", SLOW)
    node = user.wait_for_state(job, "RUNNING")["NodeList"]
    try:
        user.wait_for_steps(job, "lost", count=6)  # one save has been made
        user.cluster.end_slurmd(node)
        shown = user.wait_for_state(job, "COMPLETED", "FAILED", "CANCELLED")
        assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "1"), user.job_log(job)
        assert shown["NodeList"] != node
    finally:
        user.cluster.start_slurmd(node)
    assert "resumed from" in user.job_log(job)
    assert len(user.losses("lost")) == STEPS
