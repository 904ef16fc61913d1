"""The account of a start: what counts as what, on a clock that the test turns."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sslengine import startup
from sslengine.registry import import_dotted


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


def test_phases_are_told_in_order_and_add_up(clock: Clock) -> None:
    startup.begin()
    clock.wait(0.5)
    startup.mark("config")
    clock.wait(0.01)
    startup.mark("data")
    clock.wait(2.0)
    assert startup.finish() == "start-up 5.5 s: imports 3.0, config 0.5, first step 2.0"
    assert startup.finish() == ""


def test_imports_are_no_part_of_the_phase_in_which_they_are_made(clock: Clock) -> None:
    startup.begin()
    clock.wait(1.0)
    with startup.importing():
        clock.wait(4.0)
        with startup.importing():  # a module that imports another by its name
            clock.wait(2.0)
    clock.wait(0.5)
    startup.mark("model")
    assert startup.finish() == "start-up 10.5 s: imports 9.0, model 1.5"


def test_what_an_import_compiles_is_no_import(clock: Clock) -> None:
    startup.move_from_imports("compiling", 1.0)  # nothing has begun
    startup.begin()
    startup.move_from_imports("compiling", 1.0)  # nor is anything imported
    with startup.importing():
        clock.wait(4.0)
        startup.move_from_imports("compiling", 2.5)
        startup.move_from_imports("compiling", 0.5)
    assert startup.finish() == "start-up 7.0 s: imports 4.0, compiling 3.0"


def test_a_module_that_fails_is_counted_too(clock: Clock) -> None:
    startup.begin()
    with pytest.raises(ZeroDivisionError), startup.importing():
        clock.wait(1.0 / 0)
    clock.wait(1.0)
    assert startup.finish() == "start-up 4.0 s: imports 3.0, first step 1.0"


def test_what_is_imported_by_name_counts_as_import(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from sslengine import startup; startup.now.wait(7.0); thing = 1"
    (tmp_path / "slow_to_import.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    startup.begin()
    assert import_dotted("slow_to_import:thing") == 1
    assert startup.finish() == "start-up 10.0 s: imports 10.0"


def test_a_rank_goes_on_with_the_account_of_the_command(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    startup.begin()
    clock.wait(1.0)
    startup.mark("config")
    with startup.passed_to_ranks():
        text = os.environ[startup.VARIABLE]
    assert startup.VARIABLE not in os.environ
    startup.finish()
    # Two seconds later a process is born; after three more of imports it takes over.
    monkeypatch.setenv(startup.VARIABLE, text)
    monkeypatch.setattr(startup, "born", lambda: 103.0)
    clock.time = 106.0
    startup.take_over()
    assert startup.VARIABLE not in os.environ
    clock.wait(0.5)
    startup.mark("rendezvous")
    assert startup.finish() == "start-up 9.5 s: imports 6.0, config 1.0, rendezvous 2.5"


def test_a_rank_that_is_started_again_counts_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    startup.begin()
    with startup.passed_to_ranks():
        text = os.environ[startup.VARIABLE]
    startup.finish()
    monkeypatch.setenv(startup.VARIABLE, text)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    startup.take_over()
    assert startup.finish() == ""


def test_a_second_command_of_a_process_begins_when_it_begins(clock: Clock) -> None:
    startup.begin()
    startup.finish()
    clock.wait(1000.0)
    startup.begin()
    clock.wait(1.0)
    assert startup.finish() == "start-up 1.0 s: first step 1.0"


def test_without_a_command_nothing_is_counted(clock: Clock) -> None:
    startup.mark("data")
    with startup.importing(), startup.passed_to_ranks():
        clock.wait(1.0)
        assert startup.VARIABLE not in os.environ
    startup.take_over()
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
        with startup.without_garbage_collection():
            assert not gc.isenabled()
            with startup.without_garbage_collection():  # a rank in the command's process
                startup.imported()
                assert gc.isenabled()
        assert gc.isenabled()
    assert frozen == ["once"]


def test_who_collects_no_garbage_keeps_it_so() -> None:
    gc.disable()
    try:
        with startup.without_garbage_collection():
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
