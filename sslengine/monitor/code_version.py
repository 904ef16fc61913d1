"""Which code runs: the git commit of a checkout, or what a copy of it was made from."""

from __future__ import annotations

import subprocess
from pathlib import Path

# In a copy of the package: the version of what was copied.
NOTE = "COPIED_FROM"


def code_version(folder: Path) -> str | None:
    """The commit, with `+changes` if files differ from it; None outside git."""
    note = folder / NOTE
    if note.exists():
        return note.read_text().strip() or None
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "describe", "--always",
               "--abbrev=12", "--dirty=+changes"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
