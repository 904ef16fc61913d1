"""Commands that begin with Python, as processes forked from one that has imported the engine.

    done = run([sys.executable, "-m", "sslengine", "config=tiny"], cwd=folder)

What subprocess.run does and returns, without the five seconds that each import of torch takes: for
tests of what a command does, not of how it starts.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.ranks import RankPool


def run(
    command: Sequence[str],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 240.0,
) -> subprocess.CompletedProcess[str]:
    RankPool.own_server()
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        printed = [Path(folder, name) for name in ("out", "errors")]
        arguments = (list(command[1:]), cwd or Path.cwd(), dict(env or os.environ), printed)
        process = context.Process(target=_become, args=arguments)
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(list(command), timeout)
        out, errors = (each.read_text() for each in printed)
    return subprocess.CompletedProcess(list(command), process.exitcode, out, errors)


def _become(words: list[str], cwd: Path, env: dict[str, str], printed: list[Path]) -> None:
    """What `python WORDS` does, with its output in files."""
    for number, file in enumerate(printed, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(cwd)
    multiprocessing.process.ORIGINAL_DIR = str(cwd)  # where "" in sys.path is for its children
    os.environ.clear()
    os.environ.update(env)
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
