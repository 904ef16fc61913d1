from __future__ import annotations

import subprocess
from pathlib import Path

from sslengine.monitor.code_version import NOTE, code_version


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True
    )


def test_the_code_version_tells_changes(tmp_path: Path) -> None:
    _git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    _git(tmp_path, "add", "a")
    _git(tmp_path, "commit", "-m", "one")
    clean = code_version(tmp_path)
    assert clean is not None
    (tmp_path / "a").write_text("2")
    assert code_version(tmp_path) == f"{clean}+changes"


def test_outside_git_there_is_no_code_version(tmp_path: Path) -> None:
    assert code_version(tmp_path) is None


def test_a_copy_says_what_it_was_made_from(tmp_path: Path) -> None:
    (tmp_path / NOTE).write_text("abc+changes\n")
    assert code_version(tmp_path) == "abc+changes"
