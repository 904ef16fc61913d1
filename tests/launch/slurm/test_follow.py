from __future__ import annotations

from pathlib import Path

import pytest

from sslengine.errors import LaunchError
from sslengine.launch.slurm import follow as module
from sslengine.launch.slurm.cluster import JobState
from sslengine.launch.slurm.follow import Log, follow


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[JobState | LaunchError]]:
    """What SLURM says of each job, one after the other; the last for ever."""
    said: dict[str, list[JobState | LaunchError]] = {}

    def say(job: str) -> JobState:
        now = said[job].pop(0) if len(said[job]) > 1 else said[job][0]
        if isinstance(now, LaunchError):
            raise now
        return now

    monkeypatch.setattr(module, "job_state", say)
    monkeypatch.setattr(module, "_PERIOD", 0.0)
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


def test_until_all_have_ended_and_the_first_bad_status(
    states: dict[str, list[JobState | LaunchError]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    states["7_0"] = [JobState("PENDING"), JobState("RUNNING"), JobState("COMPLETED")]
    states["7_1"] = [JobState("RUNNING"), JobState("FAILED", 3)]
    states["7_2"] = [JobState("CANCELLED")]
    (tmp_path / "log").write_text("hello\n")
    assert follow({job: [tmp_path / "log"] for job in states}) == 3
    told = capsys.readouterr()
    assert told.out.count("[7_1] hello\n") == 1
    assert sorted(told.err.splitlines()) == [
        "job 7_0: COMPLETED", "job 7_1: FAILED, status 3", "job 7_2: CANCELLED, status 1",
    ]  # fmt: skip


def test_a_job_that_lost_its_node_and_waits_again_has_not_ended(
    states: dict[str, list[JobState | LaunchError]],
) -> None:
    lost = [JobState("NODE_FAIL", 1), JobState("PENDING"), JobState("RUNNING")]
    states["7"] = [*lost, JobState("COMPLETED")]
    assert follow({"7": []}) == 0


def test_a_controller_that_is_away_for_a_while(
    states: dict[str, list[JobState | LaunchError]],
) -> None:
    states["7"] = [LaunchError("away"), LaunchError("away"), JobState("COMPLETED")]
    assert follow({"7": []}) == 0
    states["7"] = [LaunchError("away")]
    with pytest.raises(LaunchError, match="away\nThe job itself may continue"):
        follow({"7": []})


def test_a_job_that_slurm_has_forgotten_is_no_success(
    states: dict[str, list[JobState | LaunchError]],
) -> None:
    states["7"] = [JobState("")]
    assert follow({"7": []}) == 1
