"""Record what becomes of a run: rank 0 writes its status, and a line for each start."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sslengine.atomic import append, write_json
from sslengine.distributed.ranks import is_primary, world_size
from sslengine.errors import Preempted
from sslengine.monitor.environment import peak_memory, typed_command
from sslengine.monitor.run_status import COMPLETE, FAILED, RUNNING, STARTS, STATUS, STOPPED, Status

# What of environment.json a start keeps.
_OF_START = ("recipe", "time", "folder", "host", "code", "sslengine", "python", "gpus")


@contextmanager
def recorded(task: Any, run_dir: Path, environment: Mapping[str, Any]) -> Iterator[None]:
    """Write what becomes of the run inside the block. A disk that is full changes nothing."""
    if not is_primary():
        yield
        return
    steps = sum(each.own_steps for each in task.phases if each.train)
    begun = {name: environment.get(name) for name in _OF_START}
    begun |= {
        "command": typed_command(),
        "step": task.iteration,
        "ranks": world_size(),
        "device": task.device.type,
    }
    with suppress(OSError):
        append(run_dir / STARTS, json.dumps(begun).encode() + b"\n")

    def write(*facts: Any) -> None:
        with suppress(OSError):
            write_json(run_dir / STATUS, vars(Status(*facts)))

    def end(status: str, cause: str = "", error: BaseException | None = None) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        step = getattr(error, "iteration", None) or task.iteration
        kind = type(error).__name__ if error is not None else ""
        write(status, step, steps, cause, kind, now, peak_memory(task.device))

    write(RUNNING, task.iteration, steps)
    try:
        yield
    except (Preempted, KeyboardInterrupt) as error:
        end(STOPPED, str(error).partition(";")[0] or "interrupted")
        raise
    except BaseException as error:
        told = str(error).strip() or type(error).__name__
        end(FAILED, told.splitlines()[0], error)
        raise
    end(COMPLETE)
