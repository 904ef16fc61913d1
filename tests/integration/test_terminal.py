"""Lines of a run in a terminal and a log: few, whole, and with any file's name."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sslengine.launch.cli import main
from sslengine.predictor import Predictor
from sslengine.predictor.report import as_text
from tests import warm
from tests.integration.command import COMMAND, write_config
from tests.predictor.runs import changes, pictures
from tests.terminal import Terminal

STOPS_AT_TORCH = (
    "import sys; print('torch is imported'); sys.stdout.flush(); import os; os._exit(0)"
)
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


# ---- Names of files and folders are anybody's: they do not command the terminal or forge the log.


HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\n2026-01-01 00:00:00,000 E sslengine: forged [red]\u202e\x9b1m.png"
)
SEEN = re.escape(
    r"\x1b[2J\x1b]0;owned\x07\n2026-01-01 00:00:00,000 E sslengine: forged [red]\u202e\x9b1m.png"
)
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run on images of which one cannot be read, in a folder with a name like it."""
    folder = tmp_path_factory.mktemp("names")
    images = pictures(folder / "images")
    (images[0].parent / HOSTILE).write_bytes(b"no image")
    write_config(folder, **changes(folder / "images", OPTIMIZER__num_epochs=1))
    run = "config.CHECKPOINT.DIR='run\x1b[2J[b]'"
    done = warm.run([*COMMAND, run], cwd=folder)
    return folder / "run\x1b[2J[b]", done


def test_the_screen_and_the_log_of_a_run(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = ran
    assert done.returncode == 0, done.stderr
    assert re.search(rf"cannot|unreadable.*{SEEN}", done.stderr), done.stderr
    log = (folder / "log.txt").read_text()
    assert re.search(SEEN, log)
    for text in (done.stdout, done.stderr, log):
        assert not CONTROL.search(text.replace("\r", ""))
        assert "\n2026-01-01" not in text
    assert r"run\x1b[2J[b]/checkpoints" in done.stdout


def test_a_prediction(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    predictor = Predictor(ran[0], nearest=20)
    query = next((ran[0].parent / "images").rglob("[0-9]*.png"))
    text = as_text(predictor, {f"{query.parent}/{HOSTILE}": predictor(query)})
    assert re.search(SEEN, text)
    assert not CONTROL.search(text)
    assert "\n2026-01-01" not in text


def test_the_errors_of_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, **changes(tmp_path / "none\x1b[2J"))
    assert main(["config=tiny"]) == 2
    told = capsys.readouterr()
    assert r"none\x1b[2J" in told.err
    assert not CONTROL.search(told.out + told.err)


# ---- What a person sees of a short run: what matters, and no more.


ROOT = Path(__file__).resolve().parents[2]


def test_sixteen_steps_in_under_forty_lines_and_no_warnings(tmp_path: Path) -> None:
    arguments = [
        "config=quickstart/simclr", "config.OPTIMIZER.num_iterations=16", "config.LOG_FREQUENCY=1",
        "config.DATA.TRAIN.DATA_LIMIT=32", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=8",
        "config.DATA.NUM_DATALOADER_WORKERS=2",
    ]  # fmt: skip
    done = subprocess.run(
        # torch 2.6 leaves a temporary folder of its own to the end of the process.
        [sys.executable, "-W", "default", "-W", "ignore:Implicitly cleaning:ResourceWarning", str(ROOT / "tools" / "run_distributed_engines.py"), *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) < 40, "\n".join(lines)
    assert "Warning" not in done.stderr, done.stderr
    text = done.stdout
    for word in ("train 1/4", "step 1/4", "loss", "lr", "images_per_s", "done: 16 steps"):
        assert word in text, text
    assert (tmp_path / "runs/quickstart/simclr/log.txt").exists()
