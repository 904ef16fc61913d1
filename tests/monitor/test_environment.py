from __future__ import annotations

import json

import pytest
import torch

from sslengine.monitor.environment import environment


def test_the_report_is_json_and_says_versions() -> None:
    report = json.loads(json.dumps(environment()))
    # The build's suffix is in one of the two.
    assert report["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert report["python"].count(".") == 2
    assert report["threads"] >= 1


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
         "config.DATA.TRAIN.INPUT_KEY_NAMES=[data]"],
    )  # fmt: skip
    assert environment()["command"] == (
        "run 'config.TRACKER.API_KEY=***' --auth-token '***' '--secret=***' "
        "'config.DATA.TRAIN.INPUT_KEY_NAMES=[data]'"
    )


def test_secrets_at_any_depth_of_the_command_line_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.argv",
        ["run", "+config.TRACKER={url: x, login: {api_key: hunter2, 'Password': 'hunter2, too'}}",
         "config.HOOKS.EXTRA=[{name: a:B, auth_token: hunter2}]", "a={secret:hunter2,keys:[1]}"],
    )  # fmt: skip
    command = environment()["command"]
    assert "hunter2" not in command
    assert "too" not in command
    assert "url: x" in command
    assert "{name: a:B, auth_token: ***}" in command
    assert "keys:[1]" in command
