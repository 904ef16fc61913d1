"""Convert a sharded checkpoint to one file, as an unsharded run saves it.

    python extra_scripts/join_shards.py runs/mine/checkpoints/checkpoint.torch --out whole.torch

A run can resume from it; --weights-only omits the optimizer. The shards are verified first. The
whole checkpoint must fit into host memory, but not into GPU memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from sslengine.atomic import whole_file
from sslengine.checkpoint.manifest import verify
from sslengine.distributed.shard_files import is_folder_of_shards, read_folder
from sslengine.errors import CheckpointError, SSLEngineError


def join(source: Path, target: Path, weights_only: bool = False) -> None:
    folder = source.resolve()  # `checkpoint.torch` points to it
    if not is_folder_of_shards(folder):
        raise CheckpointError(f"{source} is not a sharded checkpoint.")
    if target.exists():
        raise CheckpointError(f"{target} exists; it is not overwritten.")
    verify(folder)
    state = read_folder(folder, without=("optimizer",) if weights_only else ())
    with whole_file(target) as file:
        torch.save(state, file)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="a folder *.shards, or a link to one")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--weights-only", action="store_true", help="omit the optimizer's state")
    options = parser.parse_args(arguments)
    try:
        join(options.source, options.out, options.weights_only)
    except SSLEngineError as error:
        raise SystemExit(f"error: {error}") from error
    print(f"{options.out}: written")


if __name__ == "__main__":
    main()
