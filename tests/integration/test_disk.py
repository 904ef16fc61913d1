"""The disk fails in mid-run: training continues, and what was saved stays whole."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sslengine
from sslengine.checkpoint import files, saver
from sslengine.checkpoint.manifest import verify
from sslengine.engine import loop
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import CheckpointError, OutputError
from sslengine.hooks.default import default_hooks
from sslengine.hooks.events import Hook
from sslengine.monitor.writers import JsonLinesWriter, RunPlace, Writer
from tests.config.recipes import resolved
from tests.engine.runs import CPU, same, train, weights


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver, "WAITS", (0.0,))


def _mount(folder: Path, options: str) -> int:
    return subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True
    ).returncode


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None or _mount(folder, "size=4m") != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class At(Hook):
    """Does something to the disk after a step."""

    def __init__(self, doings: dict[int, Any]) -> None:
        self.doings = doings

    def on_update(self, task: Any) -> None:
        task.services.checkpoints.saver.wait()  # so that it is known which save meets the trouble
        self.doings.get(task.iteration + 1, lambda: None)()


class Noise(Hook):
    """A picture of several pages of the disk in each record."""

    def on_update(self, task: Any) -> None:
        picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
        task.storage.put_image("noise", picture)


def _run(folder: Path, doings: dict[int, Any], *more: Writer) -> SelfSupervisionTask:
    config = resolved(LOG_FREQUENCY=1, CHECKPOINT__CHECKPOINT_ITER_FREQUENCY=1).config
    hooks = [At(doings), Noise(), *default_hooks(config, folder)]
    writers = [JsonLinesWriter(RunPlace(folder, 0)), *more]
    task = SelfSupervisionTask(config, folder, CPU, writers=writers, hooks=hooks)
    task.prepare()
    loop.run(task)
    return task


def _fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in files.list_checkpoints(folder / "checkpoints"))


def test_a_full_disk_costs_only_the_saves_that_it_prevents(
    small_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    want = weights(train(tmp_path / "elsewhere", []))
    kept: list[str] = []

    def empty() -> None:
        kept.extend(_names(small_disk))
        for path in files.list_checkpoints(small_disk / "checkpoints"):
            verify(path)
        (small_disk / "filler").unlink()

    with caplog.at_level(logging.ERROR, "sslengine"):
        task = _run(small_disk, {3: lambda: _fill(small_disk), 6: empty})
    assert same(weights(task), want)
    assert kept == ["model_iteration1.torch", "model_iteration2.torch"]
    assert f"cannot write the checkpoint {small_disk}/checkpoints/model_iteration3.torch" in (
        caplog.text
    )
    assert " are free. Delete files" in caplog.text
    assert "model_final_checkpoint_phase1.torch" in _names(small_disk)
    assert not list((small_disk / "checkpoints").glob(".*.tmp"))


def test_a_disk_that_stays_full_makes_the_end_an_error(small_disk: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write .*model_final_checkpoint"):
        _run(small_disk, {7: lambda: _fill(small_disk)})
    newest = files.newest(small_disk / "checkpoints")
    assert newest is not None
    assert newest[0].name == "model_iteration6.torch"


def test_a_disk_that_becomes_read_only(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=True)

    with caplog.at_level(logging.ERROR, "sslengine"):
        _run(small_disk, {3: lambda: remount("ro"), 7: lambda: remount("rw")})
    assert "Read-only file system" in caplog.text
    assert "model_iteration3.torch" not in _names(small_disk)
    assert "model_final_checkpoint_phase1.torch" in _names(small_disk)


def test_an_export_says_that_the_disk_is_too_small(small_disk: Path, classifier: Path) -> None:
    """Before anything is written: libraries have their own errors for this."""
    _fill(small_disk)
    with pytest.raises(OutputError, match=r"needs [1-9].*B and \S+ (bytes|kB) are free"):
        sslengine.export(classifier / "run", small_disk / "weights", "state-dict")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_folder_that_is_removed_in_mid_run_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _run(folder, {6: lambda: shutil.rmtree(folder)})
    assert _names(folder) == [
        "model_final_checkpoint_phase1.torch", "model_iteration6.torch", "model_iteration7.torch",
    ]  # fmt: skip
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4  # 6, 7, 8 and the phase


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    with caplog.at_level(logging.ERROR, "sslengine"):
        _run(
            folder,
            {3: lambda: (folder / "checkpoints").chmod(0o500),
             6: lambda: (folder / "checkpoints").chmod(0o700)},
        )  # fmt: skip
    assert "Permission denied" in caplog.text
    assert "model_final_checkpoint_phase1.torch" in _names(folder)
