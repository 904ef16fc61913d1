"""Record what becomes of a run: its status, a line for each start, and the command as a script."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sslengine.atomic import append, write_json, write_whole
from sslengine.distributed.ranks import is_primary, world_size
from sslengine.errors import Preempted
from sslengine.monitor.environment import masked, peak_memory, typed_command
from sslengine.monitor.run_facts import COMPLETE, FAILED, RUNNING, STARTS, STATUS, STOPPED, Status

# What of environment.json a start keeps.
_OF_START = ("recipe", "time", "folder", "host", "code", "sslengine", "python", "gpus")
_HEAD = "#!/bin/sh\n# What started this run; again, it resumes it. *** is a secret.\n"
_AGAIN = "\n# Started again with:\n"


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


def keep_command(run_dir: Path, arguments: Sequence[str]) -> Path:
    """Write RUN/command.sh, which starts or resumes the run; a later command becomes a comment.

    arguments: the same command as config=... KEY=VALUE; of a run from Python there is no other.
    """
    file, lines = run_dir / "command.sh", _lines(arguments)
    there = file.read_text("utf-8", errors="surrogateescape") if file.is_file() else ""
    if _commented(lines) not in _commented(there):
        text = f"{there}{_AGAIN}{_commented(lines)}" if there else f"{_HEAD}{lines}"
        write_whole(file, text.encode("utf-8", errors="surrogateescape"))
        mode = file.stat().st_mode
        file.chmod(mode | (mode & 0o444) >> 2)  # who may read it may run it
    return file


def _lines(arguments: Sequence[str]) -> str:
    written_out, typed = shlex.join(["sslengine", *masked(arguments)]), typed_command()
    if not typed.startswith("sslengine "):
        typed = written_out
    text = f"cd {shlex.quote(str(Path.cwd()))} || exit\n{typed}\n"
    if written_out != typed:
        text += f"# The same with all that was chosen:\n{_commented(written_out)}\n"
    return text


def _commented(text: str) -> str:
    """Begin every line with one #, also inside of quotes."""
    return re.sub(r"^(?:# )*(?=.)", "# ", text, flags=re.MULTILINE)
