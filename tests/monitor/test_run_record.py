"""RUN/command.sh: the words that were typed, quoted, from where they were typed; and later ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sslengine.command.front import main
from sslengine.monitor.run_record import code_version, environment, keep_command
from tests.command.photos import SMALL, write_photos


def ran(script: Path, folder: Path) -> list[str]:
    """The folder and the words with which the script calls `sslengine`, by one that prints them."""
    fake = folder / "bin" / "sslengine"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text('#!/bin/sh\npwd\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    path = f"{fake.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [str(script)], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_training_writes_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "it's here"
    write_photos(folder / "my photos", each=4)
    monkeypatch.chdir(folder)
    words = ["train", "./my photos", "--model=test_resnet", *SMALL, "--out=./runs//a"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sslengine", *words])
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "  started by runs/a/command.sh\n" in printed
    assert "method simclr, the default; others: sslengine list methods\n" in printed
    script = folder / "runs/a/command.sh"
    assert ran(script, tmp_path) == [str(folder), *words]
    written_out = script.read_text().splitlines()[-1]
    assert written_out.startswith("# sslengine config=photos/simclr ")
    assert "config.MODEL.TRUNK.TIMM.model=test_resnet" in written_out


def test_later_commands_are_comments_and_the_same_is_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, *later = (
        ["config=a"],
        ["config=b", "config.NAME='x\nreboot'"],
        ["config=a", "config.B=1"],
    )
    for each in (first, *later):
        monkeypatch.setattr(sys, "argv", ["/usr/bin/sslengine", *each])
        script = keep_command(tmp_path, each)
    text = script.read_text()
    assert ran(script, tmp_path) == [str(tmp_path), *first]
    assert [text.count(each) for each in ("config=b", "config.B=1", "Started again")] == [1, 1, 2]
    for each in (first, *later):
        monkeypatch.setattr(sys, "argv", ["/usr/bin/sslengine", *each])
        assert keep_command(tmp_path, each).read_text() == text


def test_a_secret_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["config=a", "config.TRACKER.API_KEY=hunter2"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sslengine", "--token", "hunter2", *words])
    text = keep_command(tmp_path, words).read_text()
    assert "hunter2" not in text
    assert text.count("***") == 4  # of the head, too


# ---- what it ran on


def test_secrets_and_private_variables_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_API_TOKEN", "hunter2")
    monkeypatch.setenv("SSLENGINE_PASSWORD", "hunter2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    report = environment()
    assert "hunter2" not in json.dumps(report["variables"])
    assert report["variables"]["SLURM_API_TOKEN"] == "***"
    assert report["variables"]["OMP_NUM_THREADS"] == "4"
    assert "AWS_SECRET_ACCESS_KEY" not in report["variables"]


def test_secrets_of_the_command_line_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.argv",
        ["run", "config.TRACKER.API_KEY=hunter2", "--auth-token", "hunter2", "--secret=hunter2",
         "config.DATA.TRAIN.INPUT_KEY_NAMES=[data]",
         "+config.TRACKER={url: x, login: {api_key: hunter2, 'Password': 'hunter2, too'}}",
         "config.HOOKS.EXTRA=[{name: a:B, auth_token: hunter2}]", "a={secret:hunter2,keys:[1]}"],
    )  # fmt: skip
    command = environment()["command"]
    assert command.startswith(
        "run 'config.TRACKER.API_KEY=***' --auth-token '***' '--secret=***' "
        "'config.DATA.TRAIN.INPUT_KEY_NAMES=[data]'"
    )
    assert "hunter2" not in command
    assert "too" not in command
    assert "url: x" in command
    assert "{name: a:B, auth_token: ***}" in command
    assert "keys:[1]" in command


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True
    )


def test_the_code_version_tells_changes(tmp_path: Path) -> None:
    assert code_version(tmp_path) is None  # outside git
    _git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    _git(tmp_path, "add", "a")
    _git(tmp_path, "commit", "-m", "one")
    clean = code_version(tmp_path)
    assert clean is not None
    (tmp_path / "a").write_text("2")
    assert code_version(tmp_path) == f"{clean}+changes"
