from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.checkpoint import files, saver
from sslengine.checkpoint.manifest import read_manifest
from sslengine.checkpoint.options import BestOptions, CheckpointOptions
from sslengine.checkpoint.saver import Saver
from sslengine.errors import CheckpointError


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver, "WAITS", (0.0, 0.0))


def _save(to: Saver, name: str, **facts: Any) -> None:
    to.save({"x": torch.zeros(3)}, f"model_{name}.torch", {"results": {}, **facts})


class Gate:
    """Stands before torch.save until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.at_once, self.most = 0, 0
        real = torch.save

        def save(*arguments: Any) -> None:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self.reached.set()
            assert self.open.wait(30)
            real(*arguments)
            self.at_once -= 1

        monkeypatch.setattr(torch, "save", save)


def test_training_goes_on_while_a_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, mine = Gate(monkeypatch), Saver(tmp_path, CheckpointOptions())
    state = {"x": torch.zeros(3)}
    mine.save(state, "model_phase0.torch", {"results": {}})
    assert gate.reached.wait(30)  # the file is being written, and the call has returned
    state["x"] += 1
    assert not (tmp_path / "model_phase0.torch").exists()
    gate.open.set()
    mine.finish()
    assert torch.equal(files.read(tmp_path / "model_phase0.torch")["x"], torch.zeros(3))


def test_saves_never_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, mine = Gate(monkeypatch), Saver(tmp_path, CheckpointOptions())
    _save(mine, "phase0")
    assert gate.reached.wait(30)
    threading.Timer(0.2, gate.open.set).start()
    _save(mine, "phase1")  # waits for the first one
    assert (tmp_path / "model_phase0.torch").exists()
    mine.finish()
    assert gate.most == 1
    assert [path.name for path in files.list_checkpoints(tmp_path)] == [
        "model_phase1.torch", "model_phase0.torch",
    ]  # fmt: skip


def test_a_save_that_fails_once_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = torch.save, [OSError(5, "Input/output error")]

    def save(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        real(*arguments)

    monkeypatch.setattr(torch, "save", save)
    mine = Saver(tmp_path, CheckpointOptions())
    _save(mine, "phase0")
    mine.finish()
    assert (tmp_path / "model_phase0.torch").exists()
    assert "Input/output error" in caplog.text
    assert "Trying again." in caplog.text


def test_a_save_that_goes_on_failing_is_loud_and_the_older_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine = Saver(tmp_path, CheckpointOptions(KEEP_LAST=1))
    _save(mine, "phase0")
    mine.wait()
    real = torch.save

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    _save(mine, "phase1")  # does not raise: training continues
    mine.wait()
    assert caplog.text.count("No space left on device") == 3
    assert [path.name for path in files.list_checkpoints(tmp_path)] == ["model_phase0.torch"]
    with pytest.raises(CheckpointError, match=r"cannot write .*model_phase1.*No space left"):
        mine.finish()
    monkeypatch.setattr(torch, "save", real)
    _save(mine, "phase2")  # there is space again
    mine.finish()
    assert [path.name for path in files.list_checkpoints(tmp_path)] == ["model_phase2.torch"]


def test_saves_are_numbered_on_from_what_is_there(tmp_path: Path) -> None:
    for first in (0, 2):
        mine = Saver(tmp_path, CheckpointOptions())
        for number in (first, first + 1):
            _save(mine, f"phase{number}")
        mine.finish()
    numbers = [read_manifest(path).number for path in files.list_checkpoints(tmp_path)]
    assert numbers == [4, 3, 2, 1]


def test_results_of_a_test_phase_belong_to_the_newest(tmp_path: Path) -> None:
    best = BestOptions(METRIC="test.accuracy")
    mine = Saver(tmp_path, CheckpointOptions(KEEP_LAST=1, BEST=best))
    for number, accuracy in enumerate((50.0, 70.0, 60.0)):
        _save(mine, f"phase{number}", results={"train": {"loss": 1.0}})
        mine.add_results({"test": {"accuracy": accuracy}})
    assert (tmp_path / files.BEST).resolve().name == "model_phase1.torch"
    kept = [read_manifest(path) for path in files.list_checkpoints(tmp_path)]
    assert [each.file for each in kept] == ["model_phase2.torch", "model_phase1.torch"]
    assert kept[1].results == {"train": {"loss": 1.0}, "test": {"accuracy": 70.0}}
    _save(mine, "phase2", results={})  # saved again at the end, after its test phase
    mine.finish()
    again = read_manifest(tmp_path / "model_phase2.torch")
    assert again.results == {"train": {"loss": 1.0}, "test": {"accuracy": 60.0}}


def test_a_metric_that_never_comes_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = Saver(tmp_path, CheckpointOptions(BEST=BestOptions(METRIC="train.los")))
    for number in range(3):
        _save(mine, f"phase{number}", results={"train": {"loss": 1.0}})
    mine.finish()
    assert caplog.text.count("there is no metric 'train.los'") == 1
