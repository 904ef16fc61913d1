"""Checkpoint files: written atomically, found again, read without running code."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from rich.filesize import decimal

from sslengine.atomic import make_folder, sync_folder, whole_file
from sslengine.checkpoint.manifest import (
    Manifest,
    is_checkpoint,
    path_for,
    read_manifest,
    sha256_of,
    verify,
)
from sslengine.checkpoint.snapshot import size_of
from sslengine.distributed.shard_files import Peers
from sslengine.errors import CheckpointError
from sslengine.models.weights.read import read_weights

log = logging.getLogger("sslengine")

POINTER, BEST = "checkpoint.torch", "best.torch"
_UNFINISHED = re.compile(r"\.(?:model_.+|(?:checkpoint|best)\.torch\.\d+)\.tmp")


def write(
    state: Mapping[str, Any], folder: Path, name: str, facts: Mapping[str, Any] | None = None
) -> Manifest:
    """Save under `name` with its manifest, and let `checkpoint.torch` point to it.

    The file gets its name only when it is complete and on the disk; a reader, or a power
    cut, finds the old state or the new one. facts: further fields of the manifest.
    """
    final = folder / name
    try:
        make_folder(folder)
        expect_space(folder, size_of(state))
        with whole_file(final) as file:
            torch.save(dict(state), file)
            manifest = _describe(file, final, facts or {})
            manifest.write(folder)
        point_to(folder, POINTER, name)
    except Exception as error:  # torch's own writer raises RuntimeError, pickle many others
        raise CheckpointError(
            f"cannot write the checkpoint {final}: {getattr(error, 'strerror', None) or error}. "
            f"Earlier checkpoints in the folder are unchanged."
        ) from error
    return manifest


def expect_space(
    folder: Path, needed: int, instead: str = "keep fewer checkpoints: config.CHECKPOINT.KEEP_LAST"
) -> None:
    """Raise OSError if the disk is too full. instead: what to do other than deleting files."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"it needs {decimal(needed)} and {decimal(free)} are free. Delete files, or {instead}"
        )


def _describe(file: BinaryIO, final: Path, facts: Mapping[str, Any]) -> Manifest:
    """Make the manifest of the file as read back from the disk."""
    file.flush()
    os.fsync(file.fileno())
    written = Path(file.name)
    earlier = sha256_of(final) if final.is_file() else ""
    return Manifest(final.name, written.stat().st_size, sha256_of(written), earlier, **facts)


def point_to(folder: Path, pointer: str, name: str) -> None:
    """Replace the pointer atomically: it always exists and points to a file."""
    link = folder / f".{pointer}.{os.getpid()}.tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    os.replace(link, folder / pointer)
    sync_folder(folder)


def remove_leftovers(folder: Path, names: re.Pattern[str] = _UNFINISHED) -> None:
    """Remove what a killed run had begun to write or to remove. It has no final name."""
    for path in folder.glob(".*.tmp"):
        if names.fullmatch(path.name):
            _remove_now(path)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint and its manifest. A folder is renamed first: no run can find a part."""
    if not checkpoint.is_dir() or checkpoint.is_symlink():
        checkpoint.unlink(missing_ok=True)
    elif checkpoint.suffix != ".shards":
        log.warning("%s is not removed: sslengine did not make this folder", checkpoint)
        return
    else:
        hidden = checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}.tmp")
        _remove_now(hidden)
        checkpoint.rename(hidden)
        _remove_now(hidden)
    path_for(checkpoint).unlink(missing_ok=True)


def _remove_now(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read(path: Path, peers: Peers | None = None) -> dict[str, Any]:
    """Load a checkpoint on the CPU. Tensors and plain values only: no code is run.

    peers: each gets its own shards of a sharded checkpoint; a single file is memory-mapped.
    """
    state = read_weights(path, peers=peers)
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds {type(state).__name__}, not a checkpoint.")
    return state


def newest(
    folder: Path, position: int = 1, contents: bool = True
) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest checkpoint that verifies, and its contents; None if there is none.

    A broken one is skipped with a warning, and not removed. `position` 2 is the second newest.
    contents: False does not read it: a sharded checkpoint may be too large.
    """
    candidates, broken = _listed(folder)
    for problem in broken.values():
        log.warning("skipped: %s", problem)
    for path in candidates[position - 1 :]:
        try:
            verify(path)
            return path, read(path) if contents else {}
        except CheckpointError as error:
            log.warning("skipped: %s", error)
    if candidates or broken:
        raise CheckpointError(
            f"none of the {len(candidates) + len(broken)} checkpoints in {folder} can be read from "
            f"number {position} on (config.CHECKPOINT.LATEST_CHECKPOINT_RESUME_FILE_NUM). To start "
            f"from the beginning, move them away; nothing was deleted."
        )
    return None


def list_checkpoints(folder: Path) -> list[Path]:
    """List all checkpoints of a folder, newest first; those without a valid manifest last."""
    candidates, broken = _listed(folder)
    return [*candidates, *broken]


def _listed(folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """List checkpoints, newest first; and those without a valid manifest, with the reason.

    The manifest's number decides, not the pointer: a run may be killed before it sets that.
    """
    numbers: dict[Path, int] = {}
    broken: dict[Path, str] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not is_checkpoint(path) or _is_export(path):
            continue
        try:
            numbers[path] = read_manifest(path).number
        except CheckpointError as error:
            broken[path] = str(error)
    pointed = _target(folder)
    candidates = sorted(numbers, key=lambda path: (-numbers[path], path != pointed))
    return candidates, broken


def _is_export(path: Path) -> bool:
    """Tell whether it is the file with all weights that a sharded run writes at its end."""
    shards = path.parent.glob(f"{path.stem}.*shards")
    return path.suffix == ".torch" and not path_for(path).exists() and any(shards)


def _target(folder: Path) -> Path | None:
    pointer = folder / POINTER
    return folder / os.readlink(pointer) if pointer.is_symlink() else None
