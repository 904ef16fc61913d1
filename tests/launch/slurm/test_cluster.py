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


def test_the_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, sinfo="echo gpu; echo 'long*'; echo cpu")
    for fine in ("", "gpu", "gpu,cpu"):
        cluster.check_partition(fine)
    with pytest.raises(
        ConfigError, match="there is no 'gpus'. Did you mean 'gpu'.*has cpu, gpu, l"
    ):
        cluster.check_partition("gpus")
    put_on_path(tmp_path, monkeypatch, sinfo="echo gpu; echo long")
    with pytest.raises(ConfigError, match="no default partition; name one of gpu, long"):
        cluster.check_partition("")


NODES = "echo 'main*|n1|8|64000'; echo 'main*|n2|8|257000'; echo 'big|n3|96|1000000'"


@pytest.mark.parametrize(
    ("partition", "count", "cpus", "gigabytes"),
    [("", 2, 8, 62), ("", 1, 8, 250), ("big", 1, 96, 900), ("", 2, 8, 0)],
)
def test_nodes_that_are_large_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition: str, count: int, cpus: int,
    gigabytes: int,
) -> None:  # fmt: skip
    only = f"{NODES} | grep '^{partition}'" if partition else NODES
    put_on_path(tmp_path, monkeypatch, sinfo=only.replace("grep", "/bin/grep"))
    cluster.check_nodes(partition, count, cpus, gigabytes)


@pytest.mark.parametrize(
    ("count", "cpus", "gigabytes", "fit"),
    [(2, 8, 250, "1"), (1, 16, 1, "none"), (3, 1, 1, "2"), (1, 8, 500, "none")],
)
def test_nodes_that_are_too_small_or_too_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, cpus: int, gigabytes: int, fit: str
) -> None:
    put_on_path(tmp_path, monkeypatch, sinfo=NODES)
    with pytest.raises(ConfigError) as error:
        cluster.check_nodes("", count, cpus, gigabytes)
    text = str(error.value)
    for part in (
        f"{gigabytes} GB each (config.SLURM.MEM_GB)", f"{cpus} CPUs each",
        "config.SLURM.NUM_CPU_PER_PROC", f"{fit} of the partition's 2 nodes",
        "at most 250 GB and 8 CPUs",
    ):  # fmt: skip
        assert part in text


def test_memory_that_the_cluster_does_not_know_is_left_to_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, sinfo="echo 'main*|n1|8|1'")
    cluster.check_nodes("", 1, 8, 250)


def test_a_cluster_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(
        tmp_path, monkeypatch, sinfo="echo 'Unable to contact slurm controller' >&2; exit 1"
    )
    with pytest.raises(LaunchError, match="Unable to contact slurm controller"):
        cluster.check_partition("gpu")


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
