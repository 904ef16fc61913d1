from __future__ import annotations

import io

import pytest
from rich.console import Console

from sslengine.monitor import text
from sslengine.monitor.console import ConsoleWriter
from sslengine.monitor.writers import Record


def _step(step: int) -> Record:
    display = {"step": step, "steps": 5, "epochs": 1, "eta_seconds": 3}
    return Record("step", step, 0, "train", {"loss": 2.0}, display)


PHASE = Record("phase", 5, 0, "train", {"loss": 1.0}, {"epochs": 1})


def _console(terminal: bool, width: int = 120) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=width, highlight=False), out


def test_without_a_terminal_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(text.time, "monotonic", lambda: now[0])
    console, out = _console(terminal=False)
    writer = ConsoleWriter(console)
    for step in range(1, 6):
        writer.write(_step(step))
        now[0] += text.SECONDS_BETWEEN_LINES / 2
    writer.write(PHASE)
    writer.close()
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["step 1/5", "step 3/5", "step 5/5", "loss 1"]
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_a_bar_moves_and_leaves_the_phases_line() -> None:
    console, out = _console(terminal=True)
    writer = ConsoleWriter(console)
    writer.write(_step(1))
    writer.write(_step(2))
    writer.write(PHASE)
    writer.close()
    shown = out.getvalue()
    assert "2/5" in shown
    assert "eta 0:00:03" in shown
    assert shown.rstrip().endswith("train 1/1  loss 1")
    assert "\x1b[?25h" in shown  # the cursor is back


def test_on_a_narrow_terminal_the_figures_give_way() -> None:
    console, out = _console(terminal=True, width=60)
    record = _step(2)
    record.values.update({f"loss.part_{number}": 1.0 for number in range(9)})
    writer = ConsoleWriter(console)
    writer.write(record)
    writer.close()
    shown = out.getvalue()
    assert "train 1/1" in shown
    assert "2/5" in shown
    assert "eta 0:00:03 loss 2" in shown
    assert "…" in shown
    assert "0/?" not in shown
