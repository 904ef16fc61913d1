"""Does a job that is queued again and again get anywhere?"""

from __future__ import annotations

from pathlib import Path

# In the job's folder, a line for each life: which checkpoint was the newest when it began.
_FILE = "{}_lives.txt"


def begin_life(job_folder: Path, job: str, run_folder: Path) -> None:
    with (job_folder / _FILE.format(job)).open("a") as lives:
        lives.write(f"{_newest(run_folder)}\n")


def lives_without_progress(job_folder: Path, job: str, run_folder: Path) -> int:
    """So many in a row, this one included, have left no newer checkpoint."""
    file = job_folder / _FILE.format(job)
    lives = file.read_text().split() if file.exists() else []
    now = _newest(run_folder)
    count = 0
    while count < len(lives) and lives[-1 - count] == now:
        count += 1
    return count


def _newest(run_folder: Path) -> str:
    files = (run_folder / "checkpoints").glob("model_*.torch")
    return str(max((file.stat().st_mtime_ns for file in files), default=0))
