"""What a person sees of a run in a terminal of 60, 80 and 120 columns."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.command import COMMAND, write_config
from tests.terminal import Terminal

STOPS_AT_TORCH = (
    "import sys; print('torch is imported'); sys.stdout.flush(); import os; os._exit(0)"
)
WARNING = (
    "a warning in mid-epoch that is so long that it needs more than one line in a terminal of 60"
)
NOISY = f"""
import logging
from sslengine.hooks.events import Hook
from sslengine.registry import register_hook

@register_hook("noisy")
class Noisy(Hook):
    def on_step(self, task):
        if task.iteration == 2:
            logging.getLogger("my_project").warning("{WARNING}")
"""
PATIENCE = 200  # seconds


def _until_torch(folder: Path, terminal: bool) -> str:
    """What the command prints before anything imports torch."""
    (folder / "stop").mkdir()
    (folder / "stop" / "torch.py").write_text(STOPS_AT_TORCH)
    environment = {**os.environ, "PYTHONPATH": str(folder / "stop")}
    if not terminal:
        done = subprocess.run(
            COMMAND, cwd=folder, env=environment, text=True, capture_output=True, check=False
        )
        return done.stdout + done.stderr
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        COMMAND, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            new = os.read(ours, 1024)
        except OSError:  # Linux: everybody has closed the other end
            new = b""
        if not new:
            break
        shown += new
    os.close(ours)
    assert process.wait(PATIENCE) == 0
    return shown.decode()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_a_line_before_torch_is_imported(tmp_path: Path, terminal: bool) -> None:
    write_config(tmp_path)
    lines = Terminal(80).feed(_until_torch(tmp_path, terminal)).shown
    line = ["reading the config, importing torch ..."] if terminal else []
    assert lines == [*line, "torch is imported"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")
@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_cut_and_an_epoch_is_a_line(tmp_path: Path, width: int) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    write_config(tmp_path, LOG_FREQUENCY=1, PLUGINS=["noisy"], HOOKS__EXTRA=["noisy"],
                 OPTIMIZER__num_epochs=3)  # fmt: skip
    lines = _in_tmux(tmp_path, width, [*COMMAND, "config.CHECKPOINT.DIR=run"])
    text = "\n".join(lines)
    assert lines[0] == "reading the config, importing torch ..."
    assert lines[-1] == "status 0"
    assert "━" not in text, text
    assert " ".join(f"WARNING: {WARNING}".split()) in " ".join(text.split())
    for epoch in (1, 2, 3):
        (line,) = [line for line in lines if line.startswith(f"train {epoch}/3")]
        assert re.fullmatch(r"train ./3  loss [\d.]+(  [\w.]+ -?[\d.e-]+)*(  \+\d+)?", line), line
    log = (tmp_path / "run" / "log.txt").read_text()
    for began in (
        "first step after",
        "tiny ->",
        "done:",
    ):  # as in the log, but for the ends of lines
        said = log[log.index(began) :].partition("\n2")[0]
        assert " ".join(said.split()) in " ".join(text.split()), text


def _in_tmux(folder: Path, width: int, command: list[str]) -> list[str]:
    """All that the terminal shows, at the end, of the command."""
    tmux = ["tmux", "-S", str(folder / "socket"), "-f", "/dev/null"]
    shell = f"unset COLUMNS LINES; {shlex.join(command)}; echo status $?; sleep {PATIENCE}"
    start = [*tmux, "new-session", "-d", "-x", str(width), "-y", "60", shell]
    subprocess.run(start, cwd=folder, check=True, timeout=PATIENCE)
    until = time.monotonic() + PATIENCE
    lines: list[str] = []
    try:
        while not lines or not lines[-1].startswith("status"):
            assert time.monotonic() < until, lines
            time.sleep(0.3)
            shown = subprocess.run(
                [*tmux, "capture-pane", "-p"], text=True, capture_output=True, check=True
            ).stdout
            lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    return lines
