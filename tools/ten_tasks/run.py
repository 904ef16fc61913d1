#!/usr/bin/env python3
"""Do ten tasks of the README with an installed wheel, as a user types them, and check the products.

    python -m venv clean
    clean/bin/pip install 'sslengine-0.1.0-py3-none-any.whl[fast,tables,export]' pandas
    python tools/ten_tasks/run.py --python clean/bin/python

Each task has a folder and a home folder of its own. Its inputs are written, and its products read,
by other libraries (inputs.py, checks.py). The table has the number of commands and their seconds
beyond training. The exit status is 1 if a product is wrong, a command fails or takes too long.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tools.ten_tasks.tasks import MOST_COMMANDS, TASKS, Step, Task  # noqa: E402


class Result(NamedTuple):
    task: str
    commands: int
    seconds: float  # beyond training
    training: float
    problem: str = ""

    def row(self) -> str:
        spent = f"{self.seconds:8.1f}  {self.training:8.1f}"
        return f"{self.task:38} {self.commands:8}  {spent}  {self.problem or 'right'}"


HEAD = f"{'task':38} {'commands':>8}  {'seconds':>8}  {'training':>8}  result"


class Failed(Exception):
    """A command, or a check, ended with an error."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="of the environment")
    parser.add_argument("--task", action="append", choices=sorted(TASKS), help="default: all")
    parser.add_argument("--seconds", type=float, default=120, help="limit beyond training (120)")
    given = parser.parse_args(arguments)
    results = [do(each, given) for name, each in TASKS.items() if name in (given.task or TASKS)]
    print(HEAD, *(each.row() for each in results), sep="\n")
    return int(any(each.problem for each in results))


def do(task: Task, given: argparse.Namespace) -> Result:
    # Not resolved: a virtual environment's python is a link.
    python = os.path.abspath(given.python)
    with tempfile.TemporaryDirectory(prefix="ten-tasks-") as place:
        user = User(python, Path(place))
        problem = ""
        try:
            user.run(f"python {HERE / 'inputs.py'} {task.inputs}")
            for step in task.steps:
                user.type(step)
            for line in task.checks:
                user.run(line.replace("CHECK", f"python {HERE / 'checks.py'}"))
            for check in task.looks:
                check(user)
        except Failed as error:
            problem = str(error)
        made = Result(task.name, user.commands, user.seconds, user.training, problem)
    return made if problem else made._replace(problem=too_much(made, given.seconds))


def too_much(result: Result, seconds: float) -> str:
    if result.commands > MOST_COMMANDS:
        return f"more than {MOST_COMMANDS} commands"
    return f"more than {seconds:g} s" if result.seconds > seconds else ""


class User:
    """Types commands into a shell, in a folder and with a home folder of its own."""

    def __init__(self, python: str, place: Path) -> None:
        self.folder, self.home, self.temporary = (place / each for each in ("work", "home", "tmp"))
        for each in (self.folder, self.home, self.temporary):
            each.mkdir()
        self.commands, self.seconds, self.training = 0, 0.0, 0.0
        (place / "bin").mkdir()
        _program(place / "bin" / "python", f'exec "{python}" "$@"')
        _program(place / "bin" / "sslengine", f'exec "{python}" -m sslengine "$@"')
        self.environment = {
            **os.environ, "HOME": str(self.home), "TMPDIR": str(self.temporary),
            "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        for name in ("SSLENGINE_CACHE", "HF_HOME", "HF_DATASETS_CACHE", "XDG_CACHE_HOME"):
            self.environment.pop(name, None)

    def type(self, step: Step) -> None:
        began = time.monotonic()
        self.run(step.line)
        took = time.monotonic() - began
        self.commands += step.commands
        if step.trains:
            self.training += took
        else:
            self.seconds += took

    def run(self, line: str) -> None:
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, capture_output=True, text=True, check=False,
            env=self.environment,
        )  # fmt: skip
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise Failed(f"`{line}` ended with {done.returncode}: {''.join(last)}")

    def expect(self, right: bool, problem: str) -> None:
        if not right:
            raise Failed(problem)


def _program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
