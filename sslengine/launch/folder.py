"""The run's folder: config.CHECKPOINT.DIR."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from omegaconf import DictConfig

from sslengine.checkpoint.contents import foreign, run_folder
from sslengine.errors import ConfigError

LEAST = 2**20  # bytes; a run's config and log take a tenth


def make_run_folder(config: DictConfig) -> None:
    """Create the folder before any process is started; ConfigError if that is impossible."""
    folder = run_folder(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        file = next(each for each in (folder, *folder.parents) if each.exists())
        raise ConfigError(
            f"config.CHECKPOINT.DIR: {folder} cannot be a folder: {file} is a file."
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(
            f"config.CHECKPOINT.DIR: the folder {folder} cannot be created: {error}"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"config.CHECKPOINT.DIR: the folder {folder} is not writable.")
    free = shutil.disk_usage(folder).free
    if free < LEAST:
        raise ConfigError(
            f"config.CHECKPOINT.DIR: the disk of {folder} has {free} bytes free, too few for a "
            f"run. Delete files, or choose a folder on another disk."
        )


def expect_run_folder(config: DictConfig) -> Path:
    """Return the folder; ConfigError unless it is new, empty, or the folder of a run."""
    folder = run_folder(config)
    try:
        names = foreign(folder)
    except OSError as error:
        raise ConfigError(
            f"config.CHECKPOINT.DIR: {folder} cannot be the folder of a run: {error.strerror}."
        ) from error
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise ConfigError(
            f"config.CHECKPOINT.DIR: {folder} contains files that sslengine did not write "
            f"({shown}), and no config.yaml or checkpoint with a manifest of a run. "
            f"Choose a new or empty folder, such as {folder / 'run'}."
        )
    _expect_place(folder / "checkpoints")
    return folder


def _expect_place(checkpoints: Path) -> None:
    """A run whose checkpoints are on a disk that is missing must not start from the beginning."""
    if not os.path.lexists(checkpoints) or checkpoints.is_dir():
        return
    what = "is no folder"
    if checkpoints.is_symlink():
        target = os.readlink(checkpoints)
        what = f"is a link to {target}, and no folder is there. Is its disk mounted?"
    raise ConfigError(f"config.CHECKPOINT.DIR: {checkpoints} {what}")
