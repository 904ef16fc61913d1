"""Find the checkpoint that a run resumes from. Rank 0 chooses it for all ranks."""

from __future__ import annotations

from dataclasses import dataclass
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

# Its checkpoints, next to its logs.
_VISSLS = ("model_phase*.torch", "model_iteration*.torch", "model_final_checkpoint_*.torch")


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
    path = _agreed(_look(folder, options) if is_primary() else (None, None))
    return None if path is None else Resumable(path, files.read(path, peers))


def newest_path(folder: Path) -> Path | None:
    """Find the newest checkpoint that verifies; the pointer is not used. Collective."""
    return _agreed(_newest(folder) if is_primary() else (None, None))


def _agreed(looked: tuple[Path | None, str | None]) -> Path | None:
    path, problem = broadcast_object(looked)
    if problem is not None:
        raise CheckpointError(problem)
    return None if path is None else Path(path)


def _look(folder: Path, options: CheckpointOptions) -> tuple[Path | None, str | None]:
    """Return (path, what is wrong), which can be sent to other ranks."""
    if not options.AUTO_RESUME:
        if files.list_checkpoints(folder) and not options.OVERWRITE_EXISTING:
            return None, (
                f"{folder} holds checkpoints, and config.CHECKPOINT.AUTO_RESUME is false. "
                f"Resume from them: AUTO_RESUME=true. Start from the beginning: another "
                f"config.CHECKPOINT.DIR, or config.CHECKPOINT.OVERWRITE_EXISTING=true, which moves "
                f"them aside."
            )
        return None, None
    path, problem = _newest(folder, options.LATEST_CHECKPOINT_RESUME_FILE_NUM)
    theirs = sorted(each for pattern in _VISSLS for each in folder.parent.glob(pattern))
    if path is None and problem is None and theirs and not options.OVERWRITE_EXISTING:
        problem = (
            f"config.CHECKPOINT.DIR: {folder.parent} is a run of VISSL's, which cannot be resumed. "
            f"To begin with its weights set config.MODEL.WEIGHTS_INIT.PARAMS_FILE={theirs[-1]} and "
            f"another DIR."
        )
    return path, problem


def _newest(folder: Path, position: int = 1) -> tuple[Path | None, str | None]:
    try:
        found = files.newest(folder, position, contents=False)
    except CheckpointError as error:
        return None, str(error)
    return (None if found is None else found[0]), None


def set_aside(run_dir: Path) -> Path | None:
    """Move the files of an earlier run into `earlier/<n>`, so that a new run can begin.

    Other files in the folder stay where they are.
    """
    if not is_primary():
        return None
    present = results(run_dir)
    if not present:
        return None
    number = 1
    while (run_dir / "earlier" / str(number)).exists():
        number += 1
    target = run_dir / "earlier" / str(number)
    make_folder(target)
    for path in present:
        path.rename(target / path.name)
    sync_folder(target)
    sync_folder(run_dir)
    return target
