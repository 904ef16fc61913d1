"""A run that the user names for a command to read: what it lacks, before torch is imported."""

from __future__ import annotations

from pathlib import Path

from sslengine.checkpoint.manifest import is_checkpoint
from sslengine.errors import CheckpointError, MissingCheckpointError


def expect_run(folder: Path, trained: bool = True) -> None:
    """trained: one with a checkpoint."""
    if not folder.is_dir():
        raise MissingCheckpointError(f"{folder}: there is no such folder of a run.")
    if not (folder / "config.yaml").is_file():
        raise MissingCheckpointError(f"{folder} has no config.yaml: it is not the folder of a run.")
    checkpoints = folder / "checkpoints"
    found = checkpoints.iterdir() if checkpoints.is_dir() else ()
    if trained and not any(map(is_checkpoint, found)):
        raise CheckpointError(
            f"{checkpoints} holds no checkpoint: train first with the same config.CHECKPOINT.DIR."
        )
