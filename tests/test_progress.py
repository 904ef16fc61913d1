"""What stderr shows of a stage that takes long: on a terminal, in a pipe, on other ranks."""

from __future__ import annotations

import io
import sys
import time

import pytest

from sslengine import progress as module
from sslengine.progress import progress
from tests.terminal import Terminal

PATIENCE = 60.0  # seconds


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def two_stages() -> None:
    with progress("features of val", 4, then="kNN") as step:
        step(3)
        with progress("kNN"):
            sys.stdout.write("the result\n")
        step(1)


@pytest.mark.usefixtures("progress_at_once")
def test_a_pipe_gets_lines_and_stdout_none(capsys: pytest.CaptureFixture[str]) -> None:
    two_stages()
    out, err = capsys.readouterr()
    assert out == "the result\n"
    assert err.splitlines() == [
        "features of val: 0/4 images, then kNN",
        "features of val: 3/4 images, 0:00:00 left, then kNN; kNN ...",
        "kNN: 0:00:00",
        "features of val: 4 images in 0:00:00",
    ]


@pytest.mark.usefixtures("progress_at_once")
def test_lines_in_a_pipe_have_time_between_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "pace", module.Pace(1000.0))
    monkeypatch.setattr(module, "AFTER", 1e-9)
    two_stages()
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.usefixtures("progress_at_once")
@pytest.mark.parametrize("width", [40, 100])
def test_a_terminal_has_a_bar_that_leaves_a_line(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Tty())
    two_stages()
    raw = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "━" in raw
    assert "0/4 images" in raw
    assert ("then kNN" in raw) == (width == 100)
    terminal = Terminal(width).feed(raw)
    assert terminal.shown == ["kNN: 0:00:00", "features of val: 4 images in 0:00:00"]
    assert terminal.cursor_shown


def test_what_is_short_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    two_stages()
    assert capsys.readouterr().err == ""


def test_a_stage_that_counts_nothing_is_shown_when_it_is_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "pace", module.Pace())
    monkeypatch.setattr(module, "AFTER", 0.01)
    until, err = time.monotonic() + PATIENCE, ""
    with progress("waiting for\x1b[2J a name"):
        while not err and time.monotonic() < until:
            time.sleep(0.05)
            err = capsys.readouterr().err
    assert err.startswith("waiting for\\x1b[2J a name")


@pytest.mark.usefixtures("progress_at_once")
def test_other_ranks_are_silent_and_a_failure_leaves_no_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError), progress("features"):
        raise ValueError
    assert capsys.readouterr().err == "features ...\n"
    monkeypatch.setenv("RANK", "1")
    two_stages()
    assert capsys.readouterr().err == ""
