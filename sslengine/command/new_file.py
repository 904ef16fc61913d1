"""A file that the user names for a command to write: no other is overwritten."""

from __future__ import annotations

import os
from pathlib import Path

from sslengine.errors import OutputError


def expect_new(file: Path, option: str = "") -> None:
    if os.path.lexists(file):
        raise OutputError(
            f"{option} {file}: it is there already. Give another name, or remove it.".lstrip()
        )


def expect_writable(file: Path, option: str = "") -> None:
    """New, in a folder that is there."""
    expect_new(file, option)
    folder = file.absolute().parent
    if not folder.is_dir():
        raise OutputError(f"{option} {file}: there is no folder {folder}.".lstrip())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{option} {file}: the folder {folder} is not writable.".lstrip())
