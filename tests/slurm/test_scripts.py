"""The batch scripts of docs/slurm.md, as they stand there but for the Python and the config."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.command import COMMAND, ROOT
from tests.slurm.user import PATIENCE, User

pytestmark = pytest.mark.timeout(3 * PATIENCE)

SCRIPTS = [
    part.partition("```")[0]
    for part in (ROOT / "docs" / "slurm.md").read_text().split("```bash\n")[1:]
]
TINY = "config=tiny config.OPTIMIZER.num_epochs=1 config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=2"


def _submit(user: User, script: str, results: str, *more: str) -> str:
    python, tool, _ = COMMAND
    for old, new in {
        "srun python": f"srun {python}",
        "srun torchrun": f"srun {python} -m torch.distributed.run",
        "tools/run_distributed_engines.py": tool,
        "config=quickstart/simclr": f"{TINY} config.CHECKPOINT.DIR={results} {' '.join(more)}",
        "%x-%j.log": f"{results}.log",
    }.items():
        script = script.replace(old, new)
    file = user.folder / f"{results}.sh"
    file.write_text(script)
    return user.cluster.run("sbatch", f"--chdir={user.folder}", "--parsable", str(file)).strip()


def _finish(user: User, job: str, results: str) -> str:
    state = user.wait_for_state(job, "COMPLETED", "FAILED", "CANCELLED")["JobState"]
    log = Path(user.folder / f"{results}.log").read_text()
    assert state == "COMPLETED", log
    return log


@pytest.mark.parametrize(
    ("number", "change", "says"),
    [
        pytest.param(0, ("NUM_PROC_PER_NODE=2", "NUM_PROC_PER_NODE=1"), "2 ranks, started by srun", id="task-per-rank", marks=pytest.mark.slow),
        pytest.param(0, ("", ""), "2 nodes of 2 ranks, started by srun; rendezvous at node1", id="task-per-node", marks=pytest.mark.slow),
        pytest.param(1, ("", ""), "4 ranks, started by torchrun", id="torchrun", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_scripts_train(
    user: User, number: int, change: tuple[str, str], says: str, request: pytest.FixtureRequest
) -> None:
    results = request.node.callspec.id
    job = _submit(user, SCRIPTS[number].replace(*change), results)
    log = _finish(user, job, results)
    assert log.count(f"launch: {says}") == 1
    ranks = 2 if "task-per-rank" in results else 4
    assert f"{ranks} ranks on cpu" in log
    assert len(user.losses(results)) == 64 // (2 * ranks)


@pytest.mark.slow
def test_a_script_whose_run_is_told_to_end_goes_on(user: User) -> None:
    slow = "'config.HOOKS.EXTRA=[{name:slow_first_life,seconds:3}]'"
    one = SCRIPTS[0].replace("NUM_PROC_PER_NODE=2", "NUM_PROC_PER_NODE=1")
    job = _submit(user, one, "told", slow)
    user.wait_for_steps(job, "told")
    user.cluster.run("scancel", "--signal=USR2", job)  # what --signal does, without the wait
    log = _finish(user, job, "told")
    assert user.cluster.show(job)["Restarts"] == "1"
    assert "resumed from" in log
    assert len(user.losses("told")) == 16


def test_tasks_that_the_config_does_not_expect_are_refused(user: User) -> None:
    python, tool, config = COMMAND
    out = user.cluster.run(
        "srun", "-n", "2", "-o", str(user.folder / "refused.log"), f"--chdir={user.folder}",
        "--mem=1G", python, tool, config, check=False, timeout=PATIENCE,
    )  # fmt: skip
    log = (user.folder / "refused.log").read_text()
    assert "2 processes were started, but the config is for 1" in log, out


def test_the_docs_have_what_is_tried_here() -> None:
    assert len(SCRIPTS) == 2
    assert sys.executable == COMMAND[0]
