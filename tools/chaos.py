#!/usr/bin/env python3
"""Kill a run repeatedly, and check that its result equals that of an undisturbed run.

    python tools/chaos.py config=quickstart/simclr config.OPTIMIZER.num_epochs=2 --kills 20
    python tools/chaos.py --series --kills 100        # small runs of many methods, 1 and 2 ranks

The run is first made undisturbed. Then it is made again; at random times all its processes get
SIGKILL, and the same run is started again, until it ends. Half of the kills are power cuts, which
lose unsynced data (chaos_disk.py). Then every loss and every sample of every step, also of repeated
steps, on each rank, every line of metrics.jsonl as it is read (except times), every picture, and
the whole state of the last checkpoint must be bit-equal. Further runs follow until there were
enough kills.

config.CHECKPOINT.CHECKPOINT_ITER_FREQUENCY decides how often the run saves (default here: every
second step).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from chaos_disk import Disk
from omegaconf import OmegaConf

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.checkpoint import files
from sslengine.checkpoint.manifest import sha256_of
from sslengine.command.recipes import QUICK, names_in
from sslengine.config.facts import world_size
from sslengine.config.resolve import Resolved, resolve
from sslengine.distributed.ranks import rank
from sslengine.errors import SSLEngineError
from sslengine.hooks.events import Hook
from sslengine.launch.rank import run_rank
from sslengine.monitor.history import read_nested

_LATER = (
    "sslengine.engines.train",
    "sslengine.engine.task",
    "sslengine.data.augment.compiled",
)
PACE = ("config.CHECKPOINT.CHECKPOINT_ITER_FREQUENCY=2", "config.CHECKPOINT.KEEP_LAST=3")
SMALL = (
    "config.DATA.TRAIN.DATA_LIMIT=24",
    "config.OPTIMIZER.num_epochs=3",
    "config.LOG_FREQUENCY=1",
)
# Images of a test phase; they come from the training's source.
TESTED = 8
_NEGATIVES = "config.LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives=8"
# Further overrides, of quickstarts that are not small yet and of train steps.
OWN: dict[str, tuple[str, ...]] = {
    "moco": ("config.LOSS.moco_loss.queue_size=16",),
    "swav": (
        "config.LOSS.swav_loss.queue.start_iter=4",
        "config.LOSS.swav_loss.queue.queue_length=8",
    ),
    "deepclusterv2": ("config.LOSS.deepclusterv2_loss.num_clusters=[5,4]",),
    **dict.fromkeys(("pirl", "npid", "npid++"), (_NEGATIVES,)),
    **{each: (f"config.LOSS.{each}.rows=16",) for each in ("nnclr", "ressl", "densecl")},
    "gradcache": ("config=quickstart/simclr", "+config/train_steps=gradcache"),
    "multi_optimizer": ("config=quickstart/vicreg", "+config/train_steps=multi_optimizer"),
}
# But distillation, which needs a trained teacher.
METHODS = sorted({*names_in(QUICK), *OWN} - {"distillation"})
# Not with test phases: a memory bank has rows for training images only.
UNTESTED = ("deepclusterv2", "pirl", "npid", "npid++")
# Fields of records that differ between any two runs.
TIMES = frozenset(("time", "images_per_s", "data_seconds"))
# (ranks, loader workers, share of all kills)
SHAPES = ((1, 0, 0.6), (2, 0, 0.3), (1, 2, 0.06), (2, 2, 0.04))
# Share of the kills that wait for a save to begin: otherwise few would hit one.
IN_A_SAVE = 0.3


class Record(Hook):
    """Records every step, in every start of the run."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def on_start(self, task: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"steps_rank{rank()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self._file, b"\n")  # an earlier process may have been killed within a line

    def on_step(self, task: Any) -> None:
        if task.train:
            batch = task.last_batch
            step = [task.iteration, batch.loss.item(), batch.indices.tolist()]
            os.write(self._file, json.dumps(step).encode() + b"\n")


@dataclass
class Tally:
    """What happened in a series of kills."""

    name: str
    kills: int = 0
    in_a_save: int = 0  # kills while a file was being written
    before_any_save: int = 0
    power_cuts: int = 0
    runs: int = 0
    lost: int = 0  # repeated steps, in total

    def __str__(self) -> str:
        return (
            f"{self.name:<36}{self.kills:>6}{self.in_a_save:>10}{self.before_any_save:>12}"
            f"{self.power_cuts:>12}{self.runs:>7}{self.lost / max(1, self.kills):>12.1f}"
        )


HEADER = (
    f"{'run':<36}{'kills':>6}{'in save':>10}{'before any':>12}{'power cuts':>12}{'ends':>7}"
    f"{'steps again':>12}"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for a run")
    parser.add_argument("--config-dir", action="append", default=[], metavar="DIR")
    parser.add_argument("--series", action="store_true", help="small runs of many methods")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--ranks", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    parser.add_argument("--workers", nargs="+", type=int, choices=(0, 2), default=[0, 2])
    parser.add_argument("--kills", type=int, default=20, help="number of kills (default: 20)")
    parser.add_argument(
        "--power-cuts",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="share of kills (default: 0.5)",
    )
    parser.add_argument("--tests", action="store_true", help="add test phases (--series has them)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/chaos"), help="its contents are deleted"
    )
    given = parser.parse_intermixed_args(arguments)
    sys.path.insert(0, "")  # a user's own hooks and methods
    torch.set_num_threads(1)  # no thread before a fork
    # One thread in each process too: small runs then take a quarter of the time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in _LATER:  # imported before forks: imports are half of the time of small runs
        importlib.import_module(name)
    dice = random.Random(given.seed)
    print(HEADER, flush=True)
    try:
        for name, overrides, kills, tests in _plan(given):
            folder = given.folder.absolute() / name
            make = partial(resolve_recorded, [*PACE, *overrides], given.config_dir, tests)
            tally = harm(name, make, folder, kills, dice, given.power_cuts)
            print(tally, flush=True)
    except (SSLEngineError, AssertionError) as error:
        print(f"FAILED: {error}\nseed {given.seed}; files in {given.folder}", file=sys.stderr)
        return 1
    return 0


def _plan(given: argparse.Namespace) -> Iterator[tuple[str, list[str], int, bool]]:
    """(name, overrides, kills, with test phases) of each run."""
    if not given.series:
        yield "run", given.overrides, given.kills, given.tests
        return
    shapes = [each for each in SHAPES if each[0] in given.ranks and each[1] in given.workers]
    together = sum(share for _, _, share in shapes)
    for ranks, workers, share in shapes:
        for method in given.methods:
            small = [*small_run(method, ranks, workers), *given.overrides]
            kills = max(1, round(given.kills * share / together / len(given.methods)))
            tests = method not in UNTESTED
            yield f"{method}, ranks {ranks}, workers {workers}", small, kills, tests


def small_run(method: str, ranks: int = 1, workers: int = 0) -> list[str]:
    """Return the overrides of 24 images, three epochs and batches of 4."""
    own = OWN.get(method, ())
    named = any(each.startswith("config=") for each in own)
    return [
        *([] if named else [f"config=quickstart/{method}"]), *own, *SMALL,
        f"config.DATA.NUM_DATALOADER_WORKERS={workers}",
        f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}",
        f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA={4 // ranks}",
    ]  # fmt: skip


def harm(
    name: str, make: Callable[[Path], Resolved], folder: Path, kills: int, dice: random.Random,
    power_cuts: float,
) -> Tally:  # fmt: skip
    """make: the run, in a given folder. power_cuts: share of all kills.

    Raises AssertionError if a run does not end equal to the undisturbed one.
    """
    tally = Tally(name)
    shutil.rmtree(folder, ignore_errors=True)
    whole = make(folder / "whole")
    began = time.monotonic()
    assert live(whole, None) == 0, f"the undisturbed run fails; see {folder / 'whole'}"
    seconds = time.monotonic() - began  # of a run that is not killed
    while tally.kills < kills:
        for each in ("killed", "killed_beside"):
            shutil.rmtree(folder / each, ignore_errors=True)
        killed, disk = make(folder / "killed"), Disk(folder / "killed", folder / "disk")
        disk.begin()
        before, began = tally.kills, time.monotonic()
        # The last start is not killed.
        while live(killed, _instant(dice, seconds) if tally.kills < kills else None, disk) != 0:
            tally.kills += 1
            checkpoints = folder / "killed" / "checkpoints"
            tally.in_a_save += any(checkpoints.glob(".model_*.tmp"))
            if dice.random() < power_cuts:
                tally.power_cuts += 1
                disk.cut(dice)
            tally.before_any_save += not files.list_checkpoints(checkpoints)
        if tally.kills == before:  # all kills came too late: the machine was slower before
            seconds = min(seconds, time.monotonic() - began)
        tally.runs += 1
        tally.lost += _compare(folder / "whole", folder / "killed", world_size(whole.config))
    return tally


def resolve_recorded(
    overrides: Sequence[str], config_dirs: Sequence[str], tests: bool, folder: Path
) -> Resolved:
    """The run, in this folder and with an additional hook that records it."""
    run = resolve([*overrides, f"config.CHECKPOINT.DIR='{folder}'"], config_dirs)
    record = {"name": "chaos:Record", "folder": str(beside(folder))}
    config = copy.deepcopy(run.config)
    OmegaConf.set_readonly(config, False)
    config.HOOKS.EXTRA = [*config.HOOKS.EXTRA, record]
    config.HOOKS.WRITERS = list(dict.fromkeys((*config.HOOKS.WRITERS, "json")))
    if tests:
        config.TEST_MODEL = True
        config.DATA.TEST = copy.deepcopy(config.DATA.TRAIN)
        config.DATA.TEST.DATA_LIMIT = TESTED
    return dataclasses.replace(run, config=config)


def beside(folder: Path) -> Path:
    """The folder of the tool's own records of a run; power cuts do not affect it."""
    return folder.with_name(f"{folder.name}beside")


@dataclass(frozen=True)
class Instant:
    """When to kill: so many seconds after the start, or when the next save after that begins."""

    seconds: float
    in_a_save: bool

    def has_come(self, since_start: float, checkpoints: Path) -> bool:
        if since_start < self.seconds:
            return False
        return not self.in_a_save or any(checkpoints.glob(".model_*.tmp"))


def _instant(dice: random.Random, seconds: float) -> Instant:
    return Instant(dice.uniform(0, seconds), dice.random() < IN_A_SAVE)


def live(run: Resolved, kill_at: Any = None, disk: Disk | None = None) -> int:
    """Start the run once, in processes forked from this one. Returns 0 if it ended by itself.

    kill_at: an Instant, or another object with its has_come.
    """
    ranks, port = world_size(run.config), _free_port()
    checkpoints = Path(run.config.CHECKPOINT.DIR) / "checkpoints"
    began = time.monotonic()
    alive = [_fork(run, number, ranks, port, disk) for number in range(ranks)]
    statuses = []
    while alive:
        if kill_at is not None and kill_at.has_come(time.monotonic() - began, checkpoints):
            for process in alive:
                os.kill(process, signal.SIGKILL)
            kill_at = None
        for process in list(alive):
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                alive.remove(process)
                statuses.append(status)
        time.sleep(0.001)
    failed = [s for s in statuses if os.WIFEXITED(s) and os.WEXITSTATUS(s) != 0]
    killed = any(os.WIFSIGNALED(s) for s in statuses)
    # After a kill of another rank, a rank's error does not count.
    assert killed or not failed, f"a run failed without a kill; see {_output(run)}"
    return int(killed)


def _fork(run: Resolved, number: int, ranks: int, port: int, disk: Disk | None) -> int:
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        _output(run).parent.mkdir(parents=True, exist_ok=True)
        output = os.open(_output(run), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if ranks > 1:
            os.environ |= {
                "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
        if disk is not None:
            disk.watch()
        run_rank(run, join=ranks > 1)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _output(run: Resolved) -> Path:
    return beside(Path(run.config.CHECKPOINT.DIR)) / "output.txt"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _compare(whole: Path, killed: Path, ranks: int) -> int:
    """The number of repeated steps; raises AssertionError unless all steps are equal."""
    again = 0
    for number in range(ranks):
        name = f"steps_rank{number}.jsonl"
        want = {step[0]: step for step in read_steps(beside(whole) / name)}
        made = list(read_steps(beside(killed) / name))
        for step in made:
            assert step == want[step[0]], f"rank {number}: {step} instead of {want[step[0]]}"
        missing = want.keys() - {step[0] for step in made}
        assert not missing, f"rank {number} lacks the steps {sorted(missing)}"
        again += len(made) - len(want)
    for read in (read_records, read_pictures):
        _same(read.__name__, read(whole), read(killed))
    _same("", final_state(whole), final_state(killed))
    return again // ranks


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Read all lines of metrics.jsonl, each step once."""
    lines = read_nested(folder / "metrics.jsonl")
    return [{name: line[name] for name in line if name not in TIMES} for line in lines]


def read_pictures(folder: Path) -> dict[str, str]:
    paths = (folder / "images").rglob("*.png")
    return {str(path.relative_to(folder)): sha256_of(path) for path in sorted(paths)}


def read_steps(path: Path) -> Iterator[list[Any]]:
    for line in path.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # empty, or truncated by a kill


def final_state(folder: Path) -> Any:
    found = files.newest(folder / "checkpoints")
    assert found is not None
    return found[1]["classy_state_dict"]


def _same(where: str, one: Any, two: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, two), f"{where} differs"
    elif isinstance(one, dict):
        assert one.keys() == two.keys(), f"{where} has other keys"
        for key in one:
            _same(f"{where}.{key}", one[key], two[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(two), f"{where} has another length"
        for index, pair in enumerate(zip(one, two, strict=True)):
            _same(f"{where}.{index}", *pair)
    else:
        assert one == two, f"{where}: {one} and {two}"


if __name__ == "__main__":
    sys.exit(main())
