from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


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


def test_at_other_times_the_disk_was_luckier(tmp_path: Path, disk: Any) -> None:
    """Anything between what is sure and what was written; what is sure never less."""
    run, seen = tmp_path / "run", set()
    dice = random.Random(0)
    for _ in range(60):
        (run / "a").write_text("12")
        _sync(run / "a")
        _sync(run)
        with (run / "a").open("a") as file:
            file.write("345")
        disk.cut(dice)
        seen.add(_tree(run)["a"])
    assert seen == {"12", "123", "1234", "12345"}
