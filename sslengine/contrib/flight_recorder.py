"""Record what each rank of a failed run was doing: its last collectives and its threads' stacks."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import socket
import time
from pathlib import Path

from torch._C import _distributed_c10d

from sslengine.distributed.ranks import rank, world_size

log = logging.getLogger("sslengine")

FOLDER = "flight_recorder"  # in the run's folder
_LAST = 200  # collectives that are recorded


def arm_recorder() -> None:
    """Let torch keep the last collectives. Call it before the group is made."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(_LAST))


def keep_record(run_dir: Path) -> Path | None:
    """Write `flight_recorder/rank<N>.json`, a collective a line, and the stacks as .txt.

    Return None with one process, which has no collectives, and if writing fails: the run's own
    error is then the one to report.
    """
    if world_size() == 1:
        return None
    path = run_dir / FOLDER / f"rank{rank()}.json"
    about = {"rank": rank(), "host": socket.gethostname(), "pid": os.getpid(), "at": time.time()}
    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", lambda: "{}")  # since torch 2.8
    lines = [json.dumps(each) for each in (about, *json.loads(dump()).get("entries", []))]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with path.with_suffix(".txt").open("w", encoding="utf-8") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
    except OSError as error:
        log.warning("could not write %s: %s", path, error)
        return None
    return path
