from __future__ import annotations

import io
import logging
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sslengine import screen
from sslengine.monitor.console import ConsoleWriter, Screen, close_log, open_log
from sslengine.monitor.writers import Record, RunPlace
from tests.terminal import Terminal


class _Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def _step(step: int) -> Record:
    display = {"step": step, "steps": 5, "epochs": 1, "eta_seconds": 3}
    return Record("step", step, 0, "train", {"loss": 2.0}, display)


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_printed_commands_neither_the_terminal_nor_rich(terminal: bool) -> None:
    out = io.StringIO()
    screen = Screen(file=out, force_terminal=terminal, width=80)
    screen.print("run\x1b[2J/[red]x[/red]\n  checkpoint [/b]")
    assert out.getvalue() == "run\\x1b[2J/[red]x[/red]\n  checkpoint [/b]\n"


PHASE = Record("phase", 5, 0, "train", {"loss": 1.0}, {"epochs": 1})


def _writer(terminal: bool, width: int = 120) -> tuple[ConsoleWriter, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=width, highlight=False)
    return ConsoleWriter(RunPlace(Path(), 0, console)), out


def test_without_a_terminal_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    writer, out = _writer(terminal=False)
    for step in range(1, 6):
        writer.write(_step(step))
        now[0] += screen.SECONDS_BETWEEN_LINES / 2
    writer.write(PHASE)
    writer.close()
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["step 1/5", "step 3/5", "step 5/5", "loss 1"]
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_metrics_are_whole_or_not_shown_and_a_phase_is_one_line(width: int) -> None:
    writer, out = _writer(terminal=True, width=width)
    record = _step(2)
    metrics = {f"loss.part_{number}": 1.25 for number in range(9)}
    record.values.update(metrics)
    writer.write(record)
    (bar,) = Terminal(width).feed(out.getvalue()).shown
    assert "2/5" in bar
    assert re.search(r"eta 0:00:03 loss 2(  loss\.part_\d 1\.25)*$", bar)
    writer.write(Record("phase", 5, 0, "train", {"loss": 1.0, **metrics}, {"epochs": 1}))
    writer.close()
    terminal = Terminal(width).feed(out.getvalue())
    (line,) = terminal.shown
    shown = line.count("loss.part")
    assert re.fullmatch(r"train 1/1  loss 1(  loss\.part_\d 1\.25)+  \+\d", line)
    assert line.endswith(f"+{9 - shown}")
    assert terminal.cursor_shown
    assert "0/?" not in out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_warning_in_mid_epoch_is_above_the_bar_and_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    out = _Tty()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("COLUMNS", str(width))
    warning = "a warning that is longer than most lines, of a file that has a name: " + "x" * 30
    console = Screen(file=out, force_terminal=True, width=width)
    writer = ConsoleWriter(RunPlace(tmp_path, 0, console))
    open_log(tmp_path, rank=0)
    try:
        writer.write(_step(1))
        logging.getLogger("sslengine").warning(warning)
        logging.getLogger("my_project").warning("odd")
        bar = Terminal(width).feed(out.getvalue()).shown[-1]
        writer.write(_step(2))
        writer.write(PHASE)
    finally:
        writer.close()
        close_log()
    assert bar.startswith("train 1/1 ")
    *told, odd, phase = Terminal(width).feed(out.getvalue()).shown
    # Where lines are cut is rich's business.
    assert "".join("".join(told).split()) == f"WARNING: {warning}".replace(" ", "")
    assert all(len(line) <= width for line in told)
    assert [odd, phase] == ["WARNING: odd", "train 1/1  loss 1"]
