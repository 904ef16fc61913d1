"""The start of a command, on a clock that the test turns."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sslengine import startup


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The clock shows 100; this process was started at 97."""
    time = [100.0]
    monkeypatch.setattr(startup.time, "time", lambda: time[0])
    monkeypatch.setattr(startup, "_began", 97.0)
    monkeypatch.delenv(startup.VARIABLE, raising=False)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    yield time
    startup.finish()


def test_the_time_to_the_first_step_is_told_once(clock: list[float]) -> None:
    assert startup.finish() == ""  # without a command
    startup.begin()
    clock[0] += 2.5
    assert startup.finish() == "first step after 5.5 s"
    assert startup.finish() == ""
    clock[0] += 1000.0
    startup.begin()  # a second command of this process
    clock[0] += 1.0
    assert startup.finish() == "first step after 1.0 s"


@pytest.mark.usefixtures("clock")
def test_a_rank_that_is_started_again_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    startup.begin()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert startup.finish() == ""


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
