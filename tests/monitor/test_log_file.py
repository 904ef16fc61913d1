from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from sslengine.monitor.console import LogWriter, close_log, log_path, open_log
from sslengine.monitor.writers import Record, RunPlace

log = logging.getLogger("sslengine")


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    close_log()


def test_everything_is_in_the_file_and_warnings_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_log(tmp_path, rank=0)
    log.info("quiet")
    log.info("half done", extra={"on_screen": True})
    log.info("half a second", extra={"on_screen": False})
    log.warning("loud")
    text = (tmp_path / "log.txt").read_text()
    assert "I sslengine: quiet" in text
    assert "I sslengine: half done" in text
    assert "W sslengine: loud" in text
    assert capsys.readouterr().err == "INFO: half done\nWARNING: loud\n"


def test_other_ranks_have_files_of_their_own_and_say_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_log(tmp_path, rank=3)
    log.warning("loud")
    logging.getLogger("my_project").warning("odd")
    text = log_path(tmp_path, 3).read_text()
    assert "W sslengine: loud" in text
    assert "W my_project: odd" in text
    assert log_path(tmp_path, 3).name == "log_rank3.txt"
    assert capsys.readouterr().err == ""


def test_phases_are_lines_of_the_log_and_steps_now_and_then(tmp_path: Path) -> None:
    open_log(tmp_path, rank=0)
    writer = LogWriter(RunPlace(tmp_path, 0))
    for step in (1, 2, 3):
        writer.write(Record("step", step, 0, "train", {"loss": 2.0}, {"step": step, "steps": 3}))
    writer.write(Record("phase", 5, 0, "test", {"loss": 1.5}, {"epochs": 2}))
    text = (tmp_path / "log.txt").read_text()
    assert [word for word in ("step 1/3", "step 2/3", "step 3/3") if word in text] == ["step 1/3"]
    assert "test 1/2  loss 1.5" in text


def test_other_loggers_are_in_the_file_and_their_warnings_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = logging.getLogger().level
    open_log(tmp_path, rank=0, verbose=True)
    logging.info("a hook in the manner of Classy Vision")
    logging.getLogger("my_project.hooks").info("half done")
    logging.getLogger("my_project.hooks").warning("odd")
    logging.getLogger("PIL.PngImagePlugin").debug("STREAM b'IHDR'")
    log.debug("detail")
    log.warning("ours")
    lines = [line.split(" ", 2)[2] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert lines == [
        "I root: a hook in the manner of Classy Vision", "I my_project.hooks: half done",
        "W my_project.hooks: odd", "D sslengine: detail", "W sslengine: ours",
    ]  # fmt: skip
    assert capsys.readouterr().err == "WARNING: odd\nDEBUG: detail\nWARNING: ours\n"
    close_log()
    logging.getLogger("my_project.hooks").warning("after the run")
    assert "after" not in (tmp_path / "log.txt").read_text()
    assert logging.getLogger().level == before


def test_where_a_user_prints_the_log_nothing_is_printed_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, own = logging.getLogger(), logging.StreamHandler()  # as logging.basicConfig() makes it
    own.setFormatter(logging.Formatter("mine %(message)s"))
    root.addHandler(own)
    try:
        open_log(tmp_path, rank=0)
        logging.getLogger("my_project").info("quiet")
        logging.getLogger("my_project").warning("odd")
        log.warning("ours")
    finally:
        root.removeHandler(own)
    assert capsys.readouterr().err == "mine odd\nWARNING: ours\n"
    text = (tmp_path / "log.txt").read_text()
    assert [text.count(word) for word in ("odd", "ours")] == [1, 1]


def test_a_message_cannot_look_like_another_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_log(tmp_path, rank=0)
    log.warning("cannot read %s", "a\x1b[2J\n2026-01-01 00:00:00,000 E sslengine: forged")
    text = (tmp_path / "log.txt").read_text()
    assert len(text.splitlines()) == 2
    assert text.splitlines()[0].endswith("W sslengine: cannot read a\\x1b[2J")
    assert text.splitlines()[1].startswith("  2026-01-01")
    assert "\x1b" not in capsys.readouterr().err
