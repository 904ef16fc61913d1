"""Record what a run ran on (versions, machine, code) and what becomes of it: its status, a line for
each start, and the command as a script.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import sslengine
from sslengine.atomic import append, write_json, write_whole
from sslengine.distributed.ranks import is_primary, world_size
from sslengine.errors import Preempted
from sslengine.monitor.run_facts import COMPLETE, FAILED, RUNNING, STARTS, STATUS, STOPPED, Status

# In a copy of the package: the version of what was copied.
COPY_NOTE = "COPIED_FROM"
_PACKAGES = (
    "torch", "torchvision", "numpy", "pillow", "classy-vision", "fvcore", "iopath", "hydra-core",
    "omegaconf", "timm", "scikit-learn", "rich",
    "numba", "simplejpeg",  # what DATA.AUGMENT_BACKEND: auto selects
)  # fmt: skip
# Variables that change what a run does; anything else in the environment is private.
_VARIABLES = re.compile(
    r"^(CUDA|NCCL|GLOO|TORCH|PYTORCH|OMP|MKL|SLURM|LOCAL_|SSLENGINE|VISSL)|"
    r"^(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PYTHONPATH|PYTHONHASHSEED)$"
)
_SECRET = re.compile(r"token|key|secret|passw|credential|auth", re.IGNORECASE)


# `config.MY_TRACKER.API_KEY=...`, but not `config.DATA.TRAIN.INPUT_KEY_NAMES=...`
_NAMED = r"(token|key|secret|password|passwd|passphrase|credentials?|auth)"
_SECRET_ARGUMENT = re.compile(rf"^([^={{\[]*{_NAMED})=.*$", re.IGNORECASE | re.DOTALL)
# `config.MY_TRACKER={url: x, login: {api_key: ...}}`: up to what ends the value.
_SECRET_INSIDE = re.compile(
    rf"""([{{\[,\s'"][\w.-]*{_NAMED}['"]?\s*:\s*)('[^']*'|"[^"]*"|[^,}}\]]+)""", re.IGNORECASE
)
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


# ---- what it ran on


def environment() -> dict[str, Any]:
    """Describe what the process runs on, in a form that can be stored as JSON."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(masked(sys.argv)),
        "folder": str(Path.cwd()),
        "host": socket.gethostname(),
        "sslengine": sslengine.__version__,
        "code": code_version(Path(sslengine.__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "packages": {name: _version(name) for name in _PACKAGES},
        "variables": {
            name: "***" if _SECRET.search(name) else value
            for name, value in sorted(os.environ.items())
            if _VARIABLES.search(name)
        },
    }


def code_version(folder: Path) -> str | None:
    """Return the commit of a checkout, with `+changes` if files differ; None outside git.

    A copy of the package has a note of what it was made from.
    """
    note = folder / COPY_NOTE
    if note.exists():
        return note.read_text().strip() or None
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "describe", "--always",
               "--abbrev=12", "--dirty=+changes"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def typed_command() -> str:
    """Return the command of this process as it is typed, without secrets."""
    program = Path(sys.argv[0])
    by_module = program.parts[-2:] == ("sslengine", "__main__.py")
    first = ["sslengine"] if by_module or program.name == "sslengine" else [sys.argv[0]]
    return shlex.join([*(["python"] * (first[0][-3:] == ".py")), *first, *masked(sys.argv[1:])])


def peak_memory(device: torch.device) -> dict[str, float]:
    """Return the largest memory so far of this process, and of its GPU, in GB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"rss_gb": peak * (1 if sys.platform == "darwin" else 1024) / 1e9}
    if device.type == "cuda":
        found["gpu_allocated_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
        found["gpu_reserved_gb"] = torch.cuda.max_memory_reserved(device) / 1e9
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def masked(arguments: Sequence[str]) -> list[str]:
    """Replace what is named like a secret: `name=value`, `--name value`, `{name: value}`."""
    masked = [_SECRET_ARGUMENT.sub(r"\1=***", each) for each in arguments]
    masked = [_SECRET_INSIDE.sub(r"\1***", each) for each in masked]
    for index, before in enumerate(arguments[:-1]):
        if before.startswith("--") and "=" not in before and _SECRET_ARGUMENT.match(f"{before}="):
            masked[index + 1] = "***"
    return masked
