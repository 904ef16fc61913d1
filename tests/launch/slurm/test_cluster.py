from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from sslengine.errors import ConfigError, LaunchError
from sslengine.launch.slurm import cluster
from sslengine.launch.slurm.cluster import Log, follow
from tests.launch.slurm.fakes import put_on_path


def test_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, srun="", sinfo="", squeue="")
    with pytest.raises(ConfigError, match="config.SLURM.USE_SLURM"):
        cluster.check_installed()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'sslengine\[slurm\]'"):
        cluster.check_installed()


def test_a_cluster_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, sinfo="echo 'no controller' >&2; exit 1")
    with pytest.raises(LaunchError, match="no controller"):
        cluster.has_gpus("gpu")


@pytest.mark.parametrize(("gres", "gpus"), [("gpu:8(S:0-1)", True), ("(null)", False)])
def test_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gres: str, gpus: bool) -> None:
    put_on_path(tmp_path, monkeypatch, sinfo=f"echo '{gres}'")
    assert cluster.has_gpus("x") is gpus


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str | LaunchError]:
    """What squeue prints, one after the other; the last for ever."""
    said: list[str | LaunchError] = []

    def answer(*command: str) -> str:
        now = said.pop(0) if len(said) > 1 else said[0]
        if isinstance(now, LaunchError):
            raise now
        return now

    monkeypatch.setattr(cluster, "ask", answer)
    monkeypatch.setattr(cluster, "_PERIOD", 0.0)
    return said


def test_lines_are_printed_once_and_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log(tmp_path / "log", prefix="[7] ")
    log.print_new()
    printed = []
    for piece in ("one\ntw", "o\n", "", "three\n"):
        with (tmp_path / "log").open("a") as file:
            file.write(piece)
        log.print_new()
        printed.append(capsys.readouterr().out)
    assert printed == ["[7] one\n", "[7] two\n", "", "[7] three\n"]


def test_until_all_have_ended(
    answers: list[str | LaunchError], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers += [
        "9 RUNNING\n7_0 PENDING\n7_1 RUNNING\n7_2 CANCELLED\n",
        "7_0 RUNNING\n7_1 FAILED\n7_2 CANCELLED\n",
        "7_0 COMPLETED\n7_1 FAILED\n",
    ]
    (tmp_path / "log").write_text("hello\n")
    assert follow({job: [tmp_path / "log"] for job in ("7_0", "7_1", "7_2")}) == 1
    told = capsys.readouterr()
    assert told.out.count("[7_1] hello\n") == 1
    assert sorted(told.err.splitlines()) == [
        "job 7_0: COMPLETED", "job 7_1: FAILED", "job 7_2: CANCELLED"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (["7 NODE_FAIL\n", "7 PENDING\n", "7 RUNNING\n", "7 COMPLETED\n"], 0),  # another node
        ([LaunchError("away"), LaunchError("away"), "7 COMPLETED\n"], 0),
        ([""], 1),  # SLURM has forgotten it: no success
    ],
)
def test_how_a_job_ends(
    answers: list[str | LaunchError], said: list[str | LaunchError], status: int
) -> None:
    answers += said
    assert follow({"7": []}) == status


def test_a_controller_that_stays_away(answers: list[str | LaunchError]) -> None:
    answers += [LaunchError("away")]
    with pytest.raises(LaunchError, match="away\nThe job itself may continue"):
        follow({"7": []})
