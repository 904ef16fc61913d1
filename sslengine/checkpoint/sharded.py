"""A sharded checkpoint: a folder that gets its name only when it is complete.

Each rank writes its shards into a temporary folder and returns their sha256. Rank 0 writes the
manifest of all, renames the folder and lets `checkpoint.torch` point to it. A save under a name
that exists becomes `<name>.2.shards`, since a folder cannot be replaced atomically.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from sslengine.atomic import make_folder, sync_folder, whole_file
from sslengine.checkpoint import files
from sslengine.checkpoint.manifest import FileFacts, Manifest, is_checkpoint, sha256_of, verify
from sslengine.checkpoint.snapshot import size_of
from sslengine.distributed.shard_files import (
    Peers,
    is_folder_of_shards,
    read_folder,
    split,
    write_folder,
)
from sslengine.errors import CheckpointError, MissingCheckpointError, OutputError


def write(
    state: Mapping[str, Any], folder: Path, name: str, facts: Mapping[str, Any], peers: Peers
) -> Manifest:
    """Write as `files.write` by all ranks together, in threads: all succeed, or all fail."""
    stem = name.removesuffix(".torch")
    unfinished = folder / f".{stem}.shards.tmp"
    rest, shares = split(state)
    try:
        needed = sum(peers.agree(lambda: size_of(list(shares.values()))))
        peers.agree(lambda: _make(unfinished, needed + size_of(rest)), everyone=False)
        peers.agree(lambda: _expect_there(unfinished))  # before ranks wait for each other in it
        written = peers.agree(lambda: _write(unfinished, rest, shares, peers))
        contents = dict(sorted(chain.from_iterable(each.items() for each in written)))
        finished = peers.agree(lambda: _finish(unfinished, stem, contents, facts), everyone=False)
    except CheckpointError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {folder / stem}.shards: {error}. Earlier checkpoints in "
            f"the folder are unchanged."
        ) from error
    return finished[0]


def _make(unfinished: Path, needed: int) -> None:
    make_folder(unfinished.parent)
    if unfinished.exists():
        shutil.rmtree(unfinished)
    files.expect_space(unfinished.parent, needed)
    unfinished.mkdir()


def _expect_there(unfinished: Path) -> None:
    if not unfinished.is_dir():
        raise OSError(f"{unfinished.parent} must be the same folder on all ranks, and is not")


def _write(unfinished: Path, rest: Any, shares: Any, peers: Peers) -> dict[str, FileFacts]:
    facts: dict[str, FileFacts] = {}
    for name in write_folder(unfinished, rest, shares, peers):
        path = unfinished / name
        with path.open("rb") as file:
            os.fsync(file.fileno())
        facts[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return facts


def _finish(
    unfinished: Path, stem: str, contents: dict[str, FileFacts], facts: Mapping[str, Any]
) -> Manifest:
    folder = unfinished.parent
    names = (f"{stem}{f'.{number}' if number > 1 else ''}.shards" for number in count(1))
    name = next(each for each in names if not (folder / each).exists())
    total = sum(each["bytes"] for each in contents.values())
    digest = hashlib.sha256("".join(each["sha256"] for each in contents.values()).encode())
    manifest = Manifest(name, total, digest.hexdigest(), files=contents, **facts)
    sync_folder(unfinished)
    manifest.write(folder)
    unfinished.rename(folder / name)
    files.point_to(folder, files.POINTER, name)  # and the folder is on the disk
    for earlier in folder.glob(f"{stem}.*shards"):
        if earlier.name != name and is_checkpoint(earlier):
            files.remove(earlier)
    return manifest


def export_one_file(folder: Path, name: str) -> Path:
    """Write `<name>.shards` as one file, as an unsharded run saves it but without the optimizer.

    For VISSL and all else that reads one file. Rank 0 calls it and holds all tensors in host
    memory. The run itself resumes from the shards.
    """
    return _write_one_file(folder / name, folder / f"{name.partition('.')[0]}.torch", True)


def join(source: Path, target: Path, weights_only: bool = False) -> None:
    """Verify a sharded checkpoint and write it as one file, as an unsharded run saves it."""
    folder = source.resolve()  # `checkpoint.torch` points to it
    if not is_folder_of_shards(folder):
        raise MissingCheckpointError(f"{source} is not a sharded checkpoint.")
    if target.exists():
        raise OutputError(f"{target} exists; it is not overwritten.")
    verify(folder)
    _write_one_file(folder, target, weights_only)


def _write_one_file(folder: Path, target: Path, weights_only: bool) -> Path:
    state = read_folder(folder, without=("optimizer",) if weights_only else ())
    with whole_file(target) as file:
        torch.save(state, file)
    return target
