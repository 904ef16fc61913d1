from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sslengine.monitor.run_record import code_version, environment


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
