"""A sharded checkpoint as one file, as an unsharded run saves it. The shards are verified first."""

from __future__ import annotations

from pathlib import Path

import torch

from sslengine.atomic import whole_file
from sslengine.checkpoint.manifest import verify
from sslengine.distributed.shard_files import is_folder_of_shards, read_folder
from sslengine.errors import MissingCheckpointError, OutputError


def join(source: Path, target: Path, weights_only: bool = False) -> None:
    folder = source.resolve()  # `checkpoint.torch` points to it
    if not is_folder_of_shards(folder):
        raise MissingCheckpointError(f"{source} is not a sharded checkpoint.")
    if target.exists():
        raise OutputError(f"{target} exists; it is not overwritten.")
    verify(folder)
    state = read_folder(folder, without=("optimizer",) if weights_only else ())
    with whole_file(target) as file:
        torch.save(state, file)
