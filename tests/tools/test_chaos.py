"""Kills in series, and the disk that loses what was not synced."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.config.recipes import recipe

ROOT = Path(__file__).resolve().parents[2]


def _chaos(folder: Path, *arguments: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    (folder / "configs").mkdir()
    tree = {"config": recipe(LOG_FREQUENCY=1, **changes)}
    (folder / "configs" / "tiny.yaml").write_text("# @package _global_\n" + yaml.safe_dump(tree))
    tool = str(ROOT / "tools" / "chaos.py")
    command = [sys.executable, tool, "config=tiny", "--folder", "chaos", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_run_survives(tmp_path: Path, ranks: int) -> None:
    done = _chaos(
        tmp_path, "--kills", "4", "--tests", f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}",
        f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA={4 // ranks}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[:2] == ["run", "4"]


FORGETFUL = """
import time, torch
from sslengine.hooks.events import Hook

class Forgetful(Hook):
    '''Has a state that it does not save: how many steps were made in this life.'''
    def on_start(self, task):
        self.made = 0
    def on_update(self, task):
        time.sleep(0.3)  # for the kills to fall among the steps, not before the first
        self.made += 1
        with torch.no_grad():
            next(iter(task.base_model.parameters())).mul_(1 + 0.01 * self.made)
"""


@pytest.mark.slow
def test_a_state_that_is_not_saved_is_found(tmp_path: Path) -> None:
    """The tool can say no."""
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    done = _chaos(
        tmp_path, "--kills", "12",
        OPTIMIZER__num_epochs=4, HOOKS__EXTRA=["forgetful:Forgetful"],
    )  # fmt: skip
    assert done.returncode == 1
    assert "FAILED:" in done.stderr
    assert "instead of" in done.stderr or "differs" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_thousand_kills_of_all_methods(tmp_path: Path) -> None:
    """What docs/reliability.md reports. Two hours on two cores."""
    command = [sys.executable, str(ROOT / "tools" / "chaos.py"), "--series", "--kills", "1000"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "chaos")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert sum(int(line.split()[-6]) for line in done.stdout.splitlines()[1:]) >= 1000


# ---- chaos disk


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Of tmp_path/run, and os.fsync as it is within a run."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    from chaos_disk import Disk

    monkeypatch.setattr(os, "fsync", os.fsync)  # put back afterwards
    made = Disk(tmp_path / "run", tmp_path / "notes")
    made.begin()
    made.watch()
    yield made
    sys.modules.pop("chaos_disk")


class Harsh(random.Random):
    def random(self) -> float:
        return 0.0


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def _tree(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_text()
    return found


def test_the_end_of_a_file_that_was_not_synced_is_gone(tmp_path: Path, disk: Any) -> None:
    run = tmp_path / "run"
    (run / "a").write_text("sure ")
    _sync(run / "a")
    _sync(run)
    with (run / "a").open("a") as file:
        file.write("and not")
    disk.cut(Harsh())
    assert _tree(run) == {"a": "sure "}
    disk.cut(Harsh())  # once more: what a cut has left is sure
    assert _tree(run) == {"a": "sure "}


def test_names_need_their_folder_and_contents_their_file(tmp_path: Path, disk: Any) -> None:
    run = tmp_path / "run"
    (run / "named").write_text("not on the disk")
    (run / "link").symlink_to("named")
    _sync(run)
    (run / "content").write_text("on the disk, without a name")
    _sync(run / "content")
    (run / "folder").mkdir()
    (run / "folder" / "inside").write_text("x")
    _sync(run / "folder" / "inside")
    _sync(run / "folder")
    disk.cut(Harsh())
    assert _tree(run) == {"named": "", "link": "-> named"}


@pytest.mark.parametrize(("synced", "left"), [(False, "old"), (True, "new")])
def test_a_rename_needs_its_folder(tmp_path: Path, disk: Any, synced: bool, left: str) -> None:
    run = tmp_path / "run"
    for name, content in (("a", "old"), ("b", "new")):
        (run / name).write_text(content)
        _sync(run / name)
    _sync(run)
    os.replace(run / "b", run / "a")
    if synced:
        _sync(run)
    disk.cut(Harsh())
    assert _tree(run) == ({"a": "new"} if synced else {"a": left, "b": "new"})
