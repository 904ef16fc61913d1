from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from sslengine.errors import ConfigError, LaunchError
from sslengine.launch.slurm import cluster
from sslengine.launch.slurm.cluster import JobState, job_state
from tests.launch.slurm.fakes import put_on_path

FORGOTTEN = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'


def test_without_submitit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'sslengine\[slurm\]'"):
        cluster.check_installed()


def test_without_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, srun="", sinfo="", scontrol="")
    with pytest.raises(ConfigError, match="sbatch not found on PATH"):
        cluster.check_installed()


def test_a_cluster_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(
        tmp_path, monkeypatch, sinfo="echo 'Unable to contact slurm controller' >&2; exit 1"
    )
    with pytest.raises(LaunchError, match="Unable to contact slurm controller"):
        cluster.has_gpus("gpu")


@pytest.mark.parametrize(("gres", "gpus"), [("gpu:8(S:0-1)", True), ("(null)", False)])
def test_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gres: str, gpus: bool) -> None:
    put_on_path(tmp_path, monkeypatch, sinfo=f"echo '{gres}'")
    assert cluster.has_gpus("x") is gpus


@pytest.mark.parametrize(
    ("scontrol", "sacct", "state"),
    [
        ("echo JobId=7 JobState=RUNNING Reason=None ExitCode=0:0", "", JobState("RUNNING", 0, "None")),
        ("echo JobState=FAILED Reason=NonZeroExitCode DerivedExitCode=0:0 ExitCode=3:0", "", JobState("FAILED", 3, "NonZeroExitCode")),
        ("echo JobState=CANCELLED Reason=None ExitCode=0:15", "", JobState("CANCELLED", 143, "None")),
        (FORGOTTEN, "echo 'CANCELLED by 0|0:9'", JobState("CANCELLED", 137)),
        (FORGOTTEN, "echo 'COMPLETED|0:0'", JobState("COMPLETED", 0)),
        (FORGOTTEN, "echo 'Slurm accounting storage is disabled' >&2; exit 1", JobState("")),
    ],
)  # fmt: skip
def test_the_state_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scontrol: str, sacct: str, state: JobState
) -> None:
    put_on_path(tmp_path, monkeypatch, scontrol=scontrol, sacct=sacct)
    assert job_state("7") == state
    assert state.ended == (state.name not in ("RUNNING", ""))
