"""Checkpoint files: written whole or not at all, found again, read without running code."""

from __future__ import annotations

import logging
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sslengine.checkpoint.atomic import sync_folder, whole_file
from sslengine.errors import CheckpointError

log = logging.getLogger("sslengine")

POINTER = "checkpoint.torch"
_NAME = re.compile(r"model_(?:final_checkpoint_phase|phase|iteration)(\d+)\.torch")


def write(state: Mapping[str, Any], folder: Path, name: str) -> Path:
    """Save under `name` and let `checkpoint.torch` point to it.

    The file appears under its name only when it is complete and on the disk; a reader, or
    a power cut, finds the old state or the new one.
    """
    final = folder / name
    try:
        with whole_file(final) as file:
            torch.save(dict(state), file)
        _point_to(folder, name)
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {final}: {error.strerror or error}. "
            f"Earlier checkpoints in the folder are as they were."
        ) from error
    return final


def _point_to(folder: Path, name: str) -> None:
    link = folder / f".{POINTER}.{os.getpid()}.tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    os.replace(link, folder / POINTER)
    sync_folder(folder)


def read(path: Path) -> dict[str, Any]:
    """Load a checkpoint on the CPU. Tensors and plain values only: no code is ever run."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {path}.") from error
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint: {_first_line(error)}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds {type(state).__name__}, not a checkpoint.")
    return state


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def newest(folder: Path, position: int = 1) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that can be read, and what it holds; None if there is none at all.

    A broken one is skipped with a warning, and stays where it is. `position` 2 is the last
    but one, and so on.
    """
    candidates = in_order(folder)
    for path in candidates[position - 1 :]:
        try:
            return path, read(path)
        except CheckpointError as error:
            log.warning("skipped: %s", error)
    if candidates:
        raise CheckpointError(
            f"none of the {len(candidates)} checkpoints in {folder} can be read. Move them away to "
            f"start anew; nothing was deleted."
        )
    return None


def in_order(folder: Path) -> list[Path]:
    """All checkpoints of a folder, newest first: what the pointer says, then by time."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    found.sort(key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)
    pointed = folder / POINTER
    if pointed.is_symlink():
        target = folder / os.readlink(pointed)
        found.sort(key=lambda path: path != target)
    return found
