"""Count how often a job was restarted without progress."""

from __future__ import annotations

from pathlib import Path

from sslengine.errors import CheckpointError
from sslengine.registry import import_dotted

# In the job's folder, one line per start: the iteration of the newest checkpoint at that time.
_FILE = "{}_lives.txt"


def begin_life(job_folder: Path, job: str, run_folder: Path) -> None:
    with (job_folder / _FILE.format(job)).open("a") as lives:
        lives.write(f"{_reached(run_folder)}\n")


def lives_without_progress(job_folder: Path, job: str, run_folder: Path) -> int:
    """The last starts in a row, with this one, that made no checkpoint of a later iteration."""
    file = job_folder / _FILE.format(job)
    lives = [int(line) for line in file.read_text().split()] if file.exists() else []
    now = _reached(run_folder)
    count = 0
    while count < len(lives) and lives[-1 - count] >= now:
        count += 1
    return count


def _reached(run_folder: Path) -> int:
    """The iteration of the furthest checkpoint, sharded or not; 0 if there is none."""
    # Imported only now, so that submitting a job does not wait for torch.
    in_order = import_dotted("sslengine.checkpoint.files:list_checkpoints")
    read_manifest = import_dotted("sslengine.checkpoint.manifest:read_manifest")
    reached = 0
    for checkpoint in in_order(run_folder / "checkpoints"):
        try:
            reached = max(reached, read_manifest(checkpoint).iteration)
        except CheckpointError:
            continue  # a run does not resume from such a checkpoint
    return reached
