"""Names of files and folders are anybody's: they do not command the terminal or forge the log."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from sslengine.launch.cli import main
from sslengine.predictor import Predictor
from sslengine.predictor.report import as_text
from tests import warm
from tests.integration.command import COMMAND, write_config
from tests.predictor.runs import changes, pictures

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
