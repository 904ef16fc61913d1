"""Find the checkpoint that a run resumes from. Rank 0 chooses it for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from sslengine.atomic import make_folder, sync_folder
from sslengine.checkpoint import files
from sslengine.checkpoint.contents import results
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.distributed.shard_files import Peers
from sslengine.errors import CheckpointError


@dataclass(frozen=True)
class Resumable:
    """A checkpoint to resume from."""

    path: Path
    state: dict[str, Any]


def find(folder: Path, options: CheckpointOptions, peers: Peers | None = None) -> Resumable | None:
    """Find the checkpoint that the options choose; None: the run starts from the beginning.

    peers: the ranks of a sharded run, each of which reads only its own shards.
    Collective. A run restarts over existing checkpoints only if the options say so.
    """
    path = _choose_for_all(lambda: _choose(folder, options))
    return None if path is None else Resumable(path, files.read(path, peers))


def newest_path(folder: Path) -> Path | None:
    """Find the newest checkpoint that verifies; the pointer is not used. Collective."""
    return _choose_for_all(lambda: _newest(folder))


def _choose_for_all(choose: Callable[[], Path | None]) -> Path | None:
    """Return what rank 0 chooses on all ranks; all raise what it raises."""
    path, problem = None, None
    if is_primary():
        try:
            path = choose()
        except CheckpointError as error:
            problem = str(error)
    path, problem = broadcast_object((path, problem))
    if problem is not None:
        raise CheckpointError(problem)
    return path


def _choose(folder: Path, options: CheckpointOptions) -> Path | None:
    if options.AUTO_RESUME:
        return _newest(folder, options.LATEST_CHECKPOINT_RESUME_FILE_NUM)
    if files.list_checkpoints(folder) and not options.OVERWRITE_EXISTING:
        raise CheckpointError(
            f"{folder} holds checkpoints, and config.CHECKPOINT.AUTO_RESUME is false. Resume from "
            f"them: AUTO_RESUME=true. Start from the beginning: another config.CHECKPOINT.DIR, or "
            f"config.CHECKPOINT.OVERWRITE_EXISTING=true, which moves them aside."
        )
    return None


def _newest(folder: Path, position: int = 1) -> Path | None:
    found = files.newest(folder, position, contents=False)
    return None if found is None else found[0]


def set_aside(run_dir: Path) -> Path | None:
    """Move the files of an earlier run into `earlier/<n>`, so that a new run can begin.

    Other files in the folder stay where they are.
    """
    if not is_primary():
        return None
    present = results(run_dir)
    if not present:
        return None
    targets = (run_dir / "earlier" / str(number) for number in count(1))
    target = next(each for each in targets if not each.exists())
    make_folder(target)
    for path in present:
        path.rename(target / path.name)
    sync_folder(target)
    sync_folder(run_dir)
    return target
