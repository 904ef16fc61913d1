"""A run that the user names for a command to read: what it lacks, before torch is imported."""

from __future__ import annotations

from pathlib import Path

from sslengine.errors import MissingCheckpointError


def expect_run(folder: Path) -> None:
    if not folder.is_dir():
        raise MissingCheckpointError(f"{folder}: there is no such folder of a run.")
    if not (folder / "config.yaml").is_file():
        raise MissingCheckpointError(f"{folder} has no config.yaml: it is not the folder of a run.")
