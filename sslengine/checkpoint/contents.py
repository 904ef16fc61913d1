"""What a run writes into its folder, and how such a folder is known from any other.

A folder is a run's if it holds one of these:

    config.yaml, config_<engine>.yaml    as this engine writes it, by its first two lines
    .lock                                with the host and the process that had it last
    checkpoints/                         with a checkpoint and its manifest

Files of others may then lie in it too. A folder without any of these is taken for a run if it
is empty, or holds only what a run leaves that was ended before it began.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

# All of these belong to one run: they are moved aside together when another takes its place.
RESULTS = re.compile(
    r"config(_\w+)?\.yaml|environment(_\w+)?\.json|log(_rank\d+)?\.txt|metrics\.(jsonl|csv)"
    r"|checkpoints|images|tb_logs|superseded|profile|flight_recorder"
    r"|features|predictor|evaluation\.json"
)
# These stay: what was moved aside, the lock, which is held, and the runs of a sweep.
_STAYS = re.compile(r"earlier|\.lock(_held(\.\w+)?)?|sweep_\d+")
_UNFINISHED = re.compile(rf"\.({RESULTS.pattern})\.\d+\.tmp")
# What may be there before config.yaml is; not a folder `images` that somebody else has made.
_FIRST = re.compile(r"log(_rank\d+)?\.txt|checkpoints|flight_recorder")
# Of file systems and desktops, and what a shell or a scheduler writes of a run's output.
_NOBODYS = re.compile(r"\.nfs.*|\.DS_Store|\.snapshot|lost\+found|.+\.(out|err|log)")
_HEAD = ("# @package _global_", "engine_name: ")


def foreign(folder: Path) -> list[str]:
    """The names that keep this folder from being a run's, sorted; [] if it may be one's."""
    if not folder.exists() or _is_known(folder):
        return []
    names = sorted(path.name for path in folder.iterdir())
    expected = (_FIRST, _STAYS, _UNFINISHED, _NOBODYS)
    return [name for name in names if not any(each.fullmatch(name) for each in expected)]


def _is_known(folder: Path) -> bool:
    configs = (folder.glob(pattern) for pattern in ("config.yaml", "config_*.yaml"))
    if any(_is_ours(path) for found in configs for path in found):
        return True
    try:
        holder = json.loads((folder / ".lock").read_text())
        if isinstance(holder, dict) and {"host", "pid"} <= holder.keys():
            return True
    except (OSError, ValueError):
        pass
    checkpoints = folder / "checkpoints"
    return any((checkpoints / f"{each.stem}.json").is_file()
               for each in checkpoints.glob("model_*.torch")) or any(
        Path(f"{each}.json").is_file() for each in checkpoints.glob("model_*.shards")
    )  # fmt: skip


def _is_ours(config: Path) -> bool:
    try:
        with config.open(encoding="utf-8") as file:
            head = [file.readline(200) for _ in _HEAD]
    except (OSError, ValueError):
        return False
    return all(line.startswith(begin) for line, begin in zip(head, _HEAD, strict=True))


def results(folder: Path) -> list[Path]:
    """What of this folder belongs to its run: the checkpoints last, without which it is none."""
    found = [path for path in folder.iterdir() if RESULTS.fullmatch(path.name)]
    return sorted(found, key=lambda path: (path.name == "checkpoints", path.name))


def remove_leftovers(folder: Path) -> None:
    """What a run that was killed had begun to write here. It has no final name."""
    for path in folder.glob(".*.tmp"):
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)
