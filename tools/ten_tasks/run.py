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
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
MOST_COMMANDS = 9
# As small as a task can be.
SMALL = "--method simclr --model resnet18 --size 64 --batch-size 4 --epochs 1 --device cpu"
TRAIN = f"sslengine train photos {SMALL} --out runs/mine"
EMBED = "sslengine embed runs/mine photos --out photos.csv"
# What a machine without the extra `fast` has.
WITHOUT_NUMBA = "import sys\nfor name in ('numba', 'simplejpeg'):\n    sys.modules[name] = None\n"
BARE = "PYTHONPATH=bare${PYTHONPATH:+:$PYTHONPATH}"
TRAIN_IN_PYTHON = """import sslengine
sizes = dict(size=64, batch_size=4, epochs=1)
sslengine.train("photos", "simclr", "resnet18", device="cpu", out="runs/mine", **sizes)"""
EMBED_IN_PYTHON = """import pandas, sslengine
rows = sslengine.embed("runs/mine", "photos", device="cpu")
pandas.DataFrame(rows.features, index=rows.paths).to_csv("photos.csv", index_label="path")"""
COMPLETED = (
    "source completions/sslengine; COMP_WORDS=(sslengine train --me); COMP_CWORD=2; "
    'set -- $(complete -p sslengine); while [ "$1" != -F ]; do shift; done; "$2"; '
    'CHECK completes "${COMPREPLY[*]}"'
)
# docs/command.md, "Cleaning up": what may be outside of a run's folder, below $HOME and $TMPDIR.
CACHES = (".cache/sslengine/", ".cache/huggingface/", ".cache/Microsoft/")
TEMPORARY = ("torchinductor_", ".ses")


class Step(NamedTuple):
    line: str
    trains: bool = False
    commands: int = 1  # or statements


class Task(NamedTuple):
    name: str
    inputs: str
    steps: Sequence[Step]
    checks: Sequence[str] = ()
    looks: Sequence[Callable[[Any], None]] = ()


def _only_photos(user: Any) -> None:
    here = sorted(each.name for each in user.folder.iterdir())
    user.expect(here == ["photos"], f"left behind: {here}")


def _only_caches(user: Any) -> None:
    """Outside of the folder that the user is in."""
    for root, known in ((user.home, CACHES), (user.temporary, TEMPORARY)):
        found = [str(each.relative_to(root)) for each in root.rglob("*") if not each.is_dir()]
        odd = [each for each in found if not each.startswith(known)]
        user.expect(not odd, f"left behind in {root.name}: {odd}")
    folders = sorted(each.name for each in user.temporary.iterdir())
    odd = [each for each in folders if not each.startswith(TEMPORARY)]
    user.expect(not odd, f"left behind in tmp: {odd}")


def _python(lines: str) -> str:
    return f"python -c {shlex.quote(lines)}"


TASKS = {
    "photos": Task("photos to a data frame", "photos", [
        Step("sslengine doctor photos"), Step(TRAIN, trains=True), Step(EMBED),
        Step(_python("import pandas; assert len(pandas.read_csv('photos.csv')) == 16")),
    ], ["CHECK photos photos.csv runs/mine/weights"]),
    "python": Task("the same from Python", "photos", [
        Step(_python(TRAIN_IN_PYTHON), trains=True, commands=3),
        Step(_python(EMBED_IN_PYTHON), commands=3),
    ], ["CHECK photos photos.csv runs/mine/weights"]),
    "timm": Task("DINO continues timm's ViT-S", "timm_weights", [
        Step("sslengine train photos --recipe dino/continued --model vit_small_patch16_224 "
             "--weights vits.safetensors --size 64 --batch-size 4 --epochs 1 --device cpu "
             "--out runs/mine", trains=True),
        Step(EMBED),
    ], ["CHECK continued runs/mine/weights", "CHECK photos photos.csv runs/mine/weights"]),
    "vissl": Task("VISSL's checkpoint to timm", "vissl_checkpoint", [
        Step("sslengine export model_final.torch resnet50 --config "
             "pretrain/simclr/simclr_64gpu_resnet50"),
    ], ["CHECK vissl resnet50"]),
    "numba": Task("a run of numba's, without numba", "photos", [
        Step(TRAIN, trains=True), Step(EMBED),
        Step("mkdir bare"), Step(f"printf %s {shlex.quote(WITHOUT_NUMBA)} > bare/sitecustomize.py"),
        Step(f"{BARE} sslengine report runs/mine"),
        Step(f"{BARE} sslengine embed runs/mine photos --out bare.csv"),
    ], ["CHECK same_rows bare.csv photos.csv", "CHECK photos bare.csv runs/mine/weights"]),
    "bands": Task("TIFFs of 4 bands", "bands", [
        Step("sslengine doctor bands"),
        Step(f"sslengine train bands {SMALL} --out runs/mine", trains=True),
        Step("sslengine embed runs/mine bands --out bands.csv"),
    ], ["CHECK bands bands.csv runs/mine/weights"]),
    "parquet": Task("parquet of a hub", "parquet", [
        Step("sslengine doctor hub.parquet"),
        Step(f"sslengine train hub.parquet {SMALL} --out runs/mine", trains=True),
        Step("sslengine embed runs/mine hub.parquet --out hub.csv"),
    ], ["CHECK parquet hub.csv runs/mine/weights"]),
    "onnx": Task("ONNX in onnxruntime", "photos", [
        Step(TRAIN, trains=True), Step(EMBED), Step("sslengine export runs/mine out --to onnx"),
    ], ["CHECK onnx photos.csv out"], [_only_caches]),
    "completion": Task("completion in bash", "photos", [
        Step("mkdir completions"), Step("sslengine completion bash > completions/sslengine"),
    ], [COMPLETED]),
    "cleaning": Task("cleaning up", "photos", [
        Step(TRAIN, trains=True), Step(EMBED), Step("rm -r runs/mine/weights"),
        Step("sslengine embed runs/mine photos --out again.csv"),
        Step("cmp photos.csv again.csv"), Step("rm -r runs photos.csv again.csv"),
    ], looks=[_only_photos, _only_caches]),
}  # fmt: skip


# ---- doing them


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
