"""The start of a command, on a clock that the test turns."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sslengine import startup


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The process was started at 97."""
    made = Clock()
    monkeypatch.setattr(startup, "now", made)
    monkeypatch.setattr(startup, "born", lambda: 97.0)
    monkeypatch.setattr(startup, "_first_of_process", True)
    monkeypatch.delenv(startup.VARIABLE, raising=False)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    yield made
    startup.finish()


def test_the_time_to_the_first_step_is_told_once(clock: Clock) -> None:
    startup.begin()
    clock.wait(2.5)
    assert startup.finish() == "first step after 5.5 s"
    assert startup.finish() == ""


def test_a_rank_that_is_started_again_counts_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    startup.begin()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert startup.finish() == ""


def test_a_second_command_of_a_process_begins_when_it_begins(clock: Clock) -> None:
    startup.begin()
    startup.finish()
    clock.wait(1000.0)
    startup.begin()
    clock.wait(1.0)
    assert startup.finish() == "first step after 1.0 s"


def test_without_a_command_nothing_is_counted(clock: Clock) -> None:
    assert startup.finish() == ""


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux tells when it was started")
def test_a_process_knows_when_it_was_started() -> None:
    code = "from sslengine import startup; print(startup.born(), startup.now())"
    before = startup.now()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    born, now = map(float, done.stdout.split())
    assert before - 0.05 <= born <= now <= startup.now()  # born is told in hundredths
    assert startup.born() < born


def test_garbage_is_not_collected_among_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[str] = []
    monkeypatch.setattr(startup, "_frozen", False)
    monkeypatch.setattr(startup.gc, "freeze", lambda: frozen.append("once"))
    for _ in range(2):
        with startup.pause_garbage_collection():
            assert not gc.isenabled()
            with startup.pause_garbage_collection():  # a rank in the command's process
                startup.imported()
                assert gc.isenabled()
        assert gc.isenabled()
    assert frozen == ["once"]


def test_who_collects_no_garbage_keeps_it_so() -> None:
    gc.disable()
    try:
        with startup.pause_garbage_collection():
            startup.imported()
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


START = """\
import multiprocessing, os, sslengine.registry
if __name__ == "__main__":
    process = multiprocessing.get_context({method!r}).Process(target=os.getcwd)
    process.start()
    process.join()
    assert process.exitcode == 0
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_no_process_imports_what_is_in_the_current_folder(tmp_path: Path, method: str) -> None:
    """A process of this kind, and multiprocessing's resource tracker, which it starts."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("multiprocessing", "random", "signal", "pickle"):
        (here / f"{name}.py").write_text("open('imported', 'w').close()\n")
    (tmp_path / "start.py").write_text(START.format(method=method))
    subprocess.run([sys.executable, str(tmp_path / "start.py")], cwd=here, check=True)
    assert not (here / "imported").exists()
