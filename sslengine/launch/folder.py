"""The run's folder: config.CHECKPOINT.DIR."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig

from sslengine.checkpoint.contents import UNUSED, foreign, run_folder
from sslengine.errors import ConfigError

LEAST = 2**20  # bytes; a run's config and log take a tenth


def expect_place(folder: Path) -> None:
    """Raise ConfigError if the folder cannot be made, or not be written to. Nothing is made."""
    where = "config.CHECKPOINT.DIR"
    try:
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if not there.is_dir():
            raise ConfigError(f"{where}: {folder} cannot be a folder: {there} is a file.")
        free = shutil.disk_usage(there).free
    except OSError as error:
        raise ConfigError(f"{where}: the folder {folder} cannot be created: {error}") from error
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{where}: {folder} cannot be written: {there} is not writable.")
    if free < LEAST:
        raise ConfigError(
            f"{where}: the disk of {folder} has {free} bytes free, too few for a run. Delete "
            f"files, or choose a folder on another disk."
        )


def make_run_folder(config: DictConfig) -> list[Path]:
    """Create the folder before any process is started; return what was created, innermost first."""
    folder = run_folder(config)
    expect_place(folder)
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return new


def remove_unused(new: Sequence[Path]) -> None:
    """Remove these folders again if the run has not begun: its error was printed."""
    with suppress(OSError):  # another rank may do the same
        for folder in new:
            names = os.listdir(folder)
            if not all(map(UNUSED.fullmatch, names)):
                return
            for name in names:
                (folder / name).unlink()
            folder.rmdir()


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
    """Refuse to start from the beginning a run whose checkpoints are on a missing disk."""
    if not os.path.lexists(checkpoints) or checkpoints.is_dir():
        return
    what = "is no folder"
    if checkpoints.is_symlink():
        target = os.readlink(checkpoints)
        what = f"is a link to {target}, and no folder is there. Is its disk mounted?"
    raise ConfigError(f"config.CHECKPOINT.DIR: {checkpoints} {what}")
