"""Trackers of other packages, with stand-ins for these. The packages themselves: test_real_trackers."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sslengine.engines.train import train
from sslengine.errors import ConfigError, UntrustedError
from sslengine.monitor.history import read
from sslengine.monitor.store import Histogram
from sslengine.monitor.trackers import add_scores
from sslengine.monitor.writers import Record, RunPlace, build_writers
from sslengine.trust import Opened, closed
from tests.config.recipes import resolved
from tests.engine.test_task import SUPERVISED, WITH_TEST
from tests.engines.runs import PowerCut, make_run
from tests.monitor.fake_trackers import FakePackage, entry, fake_package
from tests.tail import slow_but

assert fake_package  # a fixture

ALL = ("wandb", "trackio", "swanlab", "mlflow")
Install = Callable[[str], FakePackage]


def _train(folder: Path, *entries: Any, cut: int = 99) -> None:
    changes = {**SUPERVISED, **WITH_TEST, "LOG_FREQUENCY": 1, "HOOKS__WRITERS": ["json", *entries],
               "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 3,
               "HOOKS__EXTRA": [{"name": "test_power_cut", "after": cut}]}  # fmt: skip
    train(make_run(folder, **changes))


def _recorded(folder: Path, kind: str, split: str) -> list[tuple[int, float]]:
    return [(each["iteration"], each["loss"]) for each in read(folder, kind, split)]


def _step(iteration: int, **more: Any) -> Record:
    return Record("step", iteration, 0, "train", {"loss": 1.0 / iteration}, **more)


@pytest.mark.parametrize("package", slow_but(["wandb", "mlflow"], ALL))
def test_a_run_that_resumes_continues_under_one_id(
    tmp_path: Path, fake_package: Install, package: str
) -> None:
    fake = fake_package(package)
    with pytest.raises(PowerCut):
        _train(tmp_path, entry(package), cut=5)
    _train(tmp_path, entry(package))
    assert fake.ended == {
        "wandb": [{"exit_code": 1}, {}], "trackio": [{}, {}], "mlflow": ["FAILED", "FINISHED"],
        "swanlab": [{"state": "crashed", "error": "PowerCut()"}, {}],
    }[package]  # fmt: skip
    assert len(fake.runs) == 1
    assert dict(fake.steps("train/loss")) == dict(_recorded(tmp_path, "step", "train"))
    assert dict(fake.steps("test_phase/loss")) == dict(_recorded(tmp_path, "phase", "test"))
    assert fake.calls[0]["config"]["LOSS"]["name"] == SUPERVISED["LOSS"]["name"]


def test_trackio_sends_nothing_offline(
    tmp_path: Path, fake_package: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_package("trackio")
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/space")
    build_writers([entry("trackio", offline=True)], RunPlace(tmp_path, 0))
    assert "TRACKIO_SPACE_ID" not in os.environ


@pytest.mark.parametrize("package", slow_but(["mlflow"], ALL))
def test_one_that_fails_ends_no_run_and_is_reported_once(
    tmp_path: Path, fake_package: Install, package: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake_package(package).away = True
    _train(tmp_path, entry(package))
    assert len(_recorded(tmp_path, "step", "train")) == 8
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    assert [f"{package} failed: Away: " in each.message for each in errors] == [True]


def test_one_that_cannot_begin_ends_no_run(
    tmp_path: Path, fake_package: Install, caplog: pytest.LogCaptureFixture
) -> None:
    fake_package("wandb").refuses = True
    _train(tmp_path, entry("wandb"))
    assert len(_recorded(tmp_path, "step", "train")) == 8
    assert "wandb failed: Away: not logged in" in caplog.text


@pytest.mark.parametrize(
    ("package", "key"), [(each, "module") for each in ALL[:3]] + [("mlflow", "name")]
)
def test_one_that_is_not_installed_is_an_error_before_anything_starts(
    package: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sslengine.monitor.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"HOOKS.WRITERS.1.{key}: .*sslengine\[{package}\]"):
        resolved(HOOKS__WRITERS=["json", entry(package)])


@pytest.mark.parametrize("package", ALL)
def test_images_and_histograms(tmp_path: Path, fake_package: Install, package: str) -> None:
    fake = fake_package(package)
    (writer,) = build_writers([entry(package)], RunPlace(tmp_path, 0))
    bins = Histogram([1, 2], 0.0, 1.0, 2.0, 2.0)
    images = {"first": np.zeros((4, 6, 3), np.uint8)}
    writer.write(_step(1, images=images, histograms={"norms": bins}))
    sent = {
        name: value for rows in fake.runs.values() for _, row in rows for name, value in row.items()
    }
    assert sent.keys() >= {"train/loss", "train/first"}
    assert (sent.get("train/norms") == ("histogram", 2)) == (package != "mlflow")


@pytest.mark.parametrize("package", ALL)
def test_scores_are_added_to_the_run(tmp_path: Path, fake_package: Install, package: str) -> None:
    fake = fake_package(package)
    (writer,) = build_writers([entry(package)], RunPlace(tmp_path, 0, config={"LOSS": {}}))
    writer.write(_step(1))
    assert add_scores(tmp_path, {"trained": {"flatten": {"knn_20": 82.5}}}) == []
    added = fake.scores or next(iter(fake.runs.values()))[-1][1]
    assert added == {"judge/trained/flatten/knn_20": 82.5}
    assert all(call["config"] == {"LOSS": {}} for call in fake.calls)
    assert len(fake.runs) == 1


def test_a_folder_from_elsewhere_sends_nothing(tmp_path: Path, fake_package: Install) -> None:
    fake = fake_package("wandb")
    build_writers([entry("wandb")], RunPlace(tmp_path, 0))
    assert stat.S_IMODE((tmp_path / "trackers" / "wandb.json").stat().st_mode) == 0o600
    del fake.calls[:]
    with closed(Opened("config.yaml")):
        assert len(add_scores(tmp_path, {"trained": {"flatten": {"knn_20": 82.5}}})) == 1
        with pytest.raises(UntrustedError):
            build_writers([entry("wandb")], RunPlace(tmp_path / "other", 0))
    assert fake.calls == []
