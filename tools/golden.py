"""Compare what two checkouts compute on this machine: the net under code that is moved.

    git worktree add ../before main
    python -m tools.golden ../before             all parts; an hour on two cores
    python -m tools.golden ../before --quick     four methods at one rank; three minutes
    python -m tools.golden ../before --parts names trees

Each checkout computes its own values with its own copy of this file, in the environment of this
Python. They must be equal to the bit. No value of weights is kept in git: it holds on one machine.

    names     the registered names of each registry
    trees     the resolved config of each YAML that ships, and of those of VISSL's form in tests/
    modules   the names and shapes of the parameters of each run that ships
    batches   the first batches of each quickstart: Pillow and numba, 0 and 2 loader workers
    runs      12 steps of each quickstart: 1 rank, 2 ranks, accumulated, killed and resumed
    judged    the scores of `judge --suite frozen` on a run
    tasks     the products of tools/ten_tasks

tests/tools/test_golden.py holds the values that are the same on any processor to tests/golden.json;
`python -m tools.golden --write` writes that file again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from sslengine import catalog, registry  # noqa: F401 - declares what ships with sslengine
from sslengine.command.check import find
from sslengine.config.resolve import Resolved, resolve
from sslengine.config.sections import read
from sslengine.config.stored import as_stored
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions
from sslengine.dotted import leaves
from sslengine.engine.build import build_base_model
from sslengine.errors import SSLEngineError
from tests.teachers import needed
from tools import chaos

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "golden.json"
SHAPED = ROOT / "tests" / "integration" / "vissl_shaped"
METHODS = (*chaos.METHODS, "distillation")
QUICK = ("simclr", "moco", "swav", "dino")
STEPS, EPOCHS, BATCHES = 12, 2, 3
FEW = 6  # steps whose losses are kept: rounding differs between processors, and grows
BACKENDS, WORKERS = ("pil", "numba"), (0, 2)
SHAPES = (ONE, TWO, ACCUMULATED, KILLED) = (
    "1 rank", "2 ranks", "accumulated", "killed and resumed",
)  # fmt: skip
Values = Iterator[tuple[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?", help="the checkout to compare with")
    parser.add_argument("--quick", action="store_true", help="four methods at one rank")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--collect", type=Path, metavar="FILE", help="write this checkout's values")
    parser.add_argument("--write", type=Path, nargs="?", const=KEPT, metavar="FILE",
                        help="write what holds on any processor")  # fmt: skip
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.write:
        given.write.write_text(json.dumps(collect_portable(), indent=1, sort_keys=True) + "\n")
        return 0
    if given.collect:
        values = collect(given.parts, given.quick)
        given.collect.write_text(json.dumps(values, indent=1, sort_keys=True))
        return 0
    if given.other is None:
        parser.error("it takes the checkout to compare with")
    with tempfile.TemporaryDirectory(prefix="golden_") as folder:
        files = [Path(folder) / "other.json", Path(folder) / "own.json"]
        for root, file in zip((given.other.resolve(), ROOT), files):
            command = [sys.executable, "-m", "tools.golden", "--collect", str(file)]
            command += ["--quick"] * given.quick + ["--parts", *given.parts]
            path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
            subprocess.run(command, check=True, cwd=root, env={**os.environ, "PYTHONPATH": path})
        other, own = (json.loads(file.read_text()) for file in files)
    differences = list(compare(other, own))
    print(*differences, f"{len(differences)} differences", sep="\n")
    return bool(differences)


def collect(parts: Sequence[str], quick: bool = False) -> dict[str, dict[str, Any]]:
    """Compute the values of this checkout, by part."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        found[part] = dict(PARTS[part](quick))
        print(f"{ROOT.name}: {part}, {len(found[part])} values", file=sys.stderr, flush=True)
    return found


def compare(other: Any, own: Any, where: str = "") -> Iterator[str]:
    """Yield a line for each value in which two collections differ."""
    if isinstance(other, dict) and isinstance(own, dict):
        for key in sorted({*other, *own}):
            yield from compare(other.get(key), own.get(key), f"{where} / {key}" if where else key)
    elif isinstance(other, list) and isinstance(own, list) and len(other) == len(own):
        for number, pair in enumerate(zip(other, own)):
            yield from compare(*pair, f"{where} / {number}")
    elif other != own:
        yield f"{where}: {_short(other)} became {_short(own)}"


def collect_portable() -> dict[str, Any]:
    """Compute what is the same on any processor: names, integer batches, rounded losses."""
    runs = dict(_list_runs(QUICK, [ONE]))
    return {
        "names": dict(_list_names()),
        "batches": dict(_list_batches(QUICK, WORKERS[:1], integers=True)),
        "losses": {name: [step[1] for step in run["losses"][0]][:FEW]
                   for name, run in runs.items()},
    }  # fmt: skip


# ---- parts


def _list_names() -> Values:
    for name, each in vars(registry).items():
        if isinstance(each, registry.Registry):
            yield name, sorted(each.names())


def _list_trees() -> Values:
    for name, resolved in _resolve_all():
        tree = as_stored(resolved.config, resolved.texts)
        yield name, {key: str(value).replace(str(ROOT), "") for key, value in leaves(tree)}


def _list_modules() -> Values:
    for name, resolved in _resolve_all():
        with suppress(SSLEngineError), torch.device("meta"):  # the classes are those of images
            model = build_base_model(resolved.config, torch.device("meta"))
            yield name, {key: list(each.shape) for key, each in model.state_dict().items()}


def _list_batches(
    names: Sequence[str], workers: Sequence[int] = WORKERS, integers: bool = False
) -> Values:
    for name in names:
        for backend in BACKENDS:
            for count in workers:
                options = read(resolve(_small(name)).config, DataOptions)
                options.AUGMENT_BACKEND, options.NUM_DATALOADER_WORKERS = backend, count
                if integers:
                    options.TRAIN.TRANSFORMS = [each for each in options.TRAIN.TRANSFORMS
                                                if each["name"] != "Normalize"]  # fmt: skip
                feed = DataFeed(options, "TRAIN", training=True, seed=0)
                hashes = [
                    _hash_all(batch, integers=integers) for batch in islice(feed.batches(), BATCHES)
                ]
                feed.close()
                yield f"{name}, {backend}, {count} workers", hashes


def _list_runs(names: Sequence[str], shapes: Sequence[str]) -> Values:
    for name in names:
        for shape in shapes:
            with tempfile.TemporaryDirectory(prefix="golden_") as folder:
                yield f"{name}, {shape}", _make_run(name, shape, Path(folder) / "run")


def _make_run(name: str, shape: str, folder: Path) -> dict[str, Any]:
    ranks, tests = 2 if shape == TWO else 1, name not in chaos.UNTESTED
    overrides = [*_small(name, ranks), f"config.OPTIMIZER.accumulate={1 + (shape == ACCUMULATED)}"]
    run = chaos.resolve_recorded(overrides, [], tests, folder)
    if shape == KILLED:
        chaos.live(run, AfterSteps(STEPS // 2))
    if chaos.live(run):
        raise SystemExit(f"{name}, {shape}: it was killed")
    return {
        "losses": [_list_losses(chaos.beside(folder) / f"steps_rank{rank}.jsonl")
                   for rank in range(ranks)],
        "metrics": chaos.read_records(folder),
        "state": _hash_all(chaos.final_state(folder)),
    }  # fmt: skip


def _list_losses(file: Path) -> list[Any]:
    """Return the loss and the samples of each step, once."""
    return [list(step) for step in {each[0]: each for each in chaos.read_steps(file)}.values()]


def _list_scores() -> Values:
    with tempfile.TemporaryDirectory(prefix="golden_") as scratch:
        run = Path(scratch) / "run"
        _run_command("tools/run_distributed_engines.py", *_small("simclr"),
                     f"config.CHECKPOINT.DIR={run}")  # fmt: skip
        _run_command("-m", "sslengine", "judge", str(run), "--suite", "frozen")
        report = json.loads((run / "evaluation.json").read_text())
    yield "frozen", {f"{number}": {"features": row["features"], "metrics": row["metrics"]}
                     for number, row in enumerate(report["scores"])}  # fmt: skip


def _list_products() -> Values:
    done = _run_command("tools/ten_tasks/run.py", "--python", sys.executable, check=False)
    for line in done.splitlines():
        if line.endswith("right"):
            yield line[:38].strip(), "right"


PARTS: dict[str, Callable[[bool], Values]] = {
    "names": lambda quick: _list_names(),
    "trees": lambda quick: _list_trees(),
    "modules": lambda quick: _list_modules(),
    "batches": lambda quick: (
        _list_batches(QUICK, WORKERS[:1]) if quick else _list_batches(METHODS, WORKERS)
    ),
    "runs": lambda quick: _list_runs(QUICK, [ONE]) if quick else _list_runs(METHODS, SHAPES),
    "judged": lambda quick: iter(()) if quick else _list_scores(),
    "tasks": lambda quick: iter(()) if quick else _list_products(),
}


# ---- helpers


@dataclass(frozen=True)
class AfterSteps:
    """Kill a run once it has saved so many steps."""

    steps: int

    def has_come(self, _: float, checkpoints: Path) -> bool:
        return any(int(each.stem.rpartition("iteration")[2]) >= self.steps
                   for each in checkpoints.glob("model_iteration*.json"))  # fmt: skip


def _small(name: str, ranks: int = 1) -> list[str]:
    return [*chaos.small_run(name, ranks), *chaos.PACE, *needed(name),
            f"config.OPTIMIZER.num_epochs={EPOCHS}", "config.MACHINE.PRECISION=fp32"]  # fmt: skip


def _resolve_all() -> Iterator[tuple[str, Resolved]]:
    """Resolve each file that is a run: those that ship, and those of VISSL's form."""
    for root in (ROOT / "configs", SHAPED):
        for file in find(root):
            if file.is_run:
                with suppress(SSLEngineError):  # it takes a value of the user's
                    yield file.name, resolve([f"config={file.name}"], [str(root)])


def _hash_all(value: Any, where: str = "", integers: bool = False) -> dict[str, str]:
    """Hash each tensor of nested containers, and what else there is, by its path."""
    if isinstance(value, dict):
        pairs = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(str(number), each) for number, each in enumerate(value)]
    elif isinstance(value, torch.Tensor):
        if integers and value.is_floating_point():
            value = (255 * value).round().to(torch.uint8)
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        kind = f"{str(value.dtype)[6:]} {'x'.join(map(str, value.shape))}"
        return {where: f"{kind} {hashlib.sha256(content).hexdigest()[:16]}"}
    else:
        return {} if integers else {where: repr(value)}
    found: dict[str, str] = {}
    for key, each in pairs:
        found |= _hash_all(each, f"{where}.{key}" if where else key, integers)
    return found


def _run_command(*arguments: str, check: bool = True) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False,
                          capture_output=True, text=True)  # fmt: skip
    if check and done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 100 else f"{text[:97]}..."


if __name__ == "__main__":
    sys.exit(main())
