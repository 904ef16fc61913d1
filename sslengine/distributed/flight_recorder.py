"""Record what each rank was doing when a run failed: its last collectives and its threads' stacks.

torch's flight recorder keeps the last collectives. Call `arm` before the process group is made.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

from torch._C import _distributed_c10d

from sslengine.distributed.ranks import rank, world_size

log = logging.getLogger("sslengine")

LAST = 200  # collectives
_KEPT = ("collective_seq_id", "profiling_name", "input_sizes", "input_dtypes", "state", "retired")


def arm() -> None:
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(LAST))


def keep(folder: Path) -> Path | None:
    """Write `folder`/rank<N>.json and .txt. Returns None with one process, which has no
    collectives, and if writing fails: the run's own error is then the one to report."""
    if world_size() == 1:
        return None
    path = folder / f"rank{rank()}.json"
    about = {"rank": rank(), "host": socket.gethostname(), "pid": os.getpid(), "at": time.time()}
    lines = [json.dumps(each) for each in (about, *last_collectives())]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with path.with_suffix(".txt").open("w", encoding="utf-8") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
    except OSError as error:
        log.warning("could not write %s: %s", path, error)
        return None
    return path


def last_collectives() -> list[dict[str, Any]]:
    """Oldest first. Without torch's recorder (before torch 2.8): none."""
    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return []
    entries = json.loads(dump()).get("entries", [])
    return [
        {**{key: each[key] for key in _KEPT if key in each}, "at": each["time_created_ns"] / 1e9}
        for each in entries
    ]
