#!/usr/bin/env python3
"""Train every method on the built-in images, evaluate it, and write the table of docs/methods.md.

    python tools/methods_table.py                        # every config of configs/quickstart
    python tools/methods_table.py simclr moco --seeds 0  # some of them, one seed
    python tools/methods_table.py --again                # measure rows of other commits again
    python tools/methods_table.py byol --variant "views apart: config.MODEL.VIEWS_APART=true"

The last command adds a row for each named method with these overrides.

Results are written to docs/methods.json, with the commit of the code that trained. A row is
measured again if the method's YAML, or one that it is based on, has changed (except comments), and
with --again if it has another commit. A stopped run is resumed by the same code, in its folder
below runs/methods. Time is that of a train step, memory that of the main process: both are
measured in two epochs that each method runs alone after all trainings, which may run in parallel
(--at-once).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from sslengine.config.compose import compose

ROOT = Path(__file__).resolve().parents[1]
RUN = [sys.executable, str(ROOT / "tools" / "run_distributed_engines.py")]
DOC = ROOT / "docs" / "methods.md"
MEASURED = ROOT / "docs" / "methods.json"
BEGIN, END = "<!-- table: made by tools/methods_table.py -->", "<!-- end of table -->"


# What the results depend on. Documents and the table itself may change meanwhile.
CODE = ("sslengine", "configs/quickstart", "configs/benchmark", "configs/base")
UNKNOWN = "unknown"
USUAL = ["shapes"]


def code_commit(root: Path = ROOT) -> str:
    """The last commit that changed the code, with `+changes` if files differ from it."""
    commit = _git(root, "log", "-1", "--format=%h", "--abbrev=9", "--", *CODE)
    changed = _git(root, "status", "--porcelain", "--", *CODE)
    return commit + ("+changes" if changed else "") if commit else UNKNOWN


def _expect_same(code: str) -> None:
    if (now := code_commit()) != code:
        raise SystemExit(
            f"The code has changed from {code} to {now} while it was measured. Earlier results "
            f"are kept. Measure in a separate checkout: git worktree add."
        )


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


@dataclass(frozen=True)
class Row:
    """A method, or a variant of it."""

    method: str
    variant: str = ""
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.method}, {self.variant}" if self.variant else self.method

    @property
    def file_name(self) -> str:
        return re.sub(r"[^\w+.]+", "_", self.name)

    @property
    def yaml(self) -> Path:
        return ROOT / "configs" / "quickstart" / f"{self.method}.yaml"


@dataclass(frozen=True)
class Job:
    row: Row
    seed: int
    folder: Path

    @property
    def overrides(self) -> list[str]:
        return [
            f"config=quickstart/{self.row.method}",
            f"config.SEED_VALUE={self.seed}",
            f"config.CHECKPOINT.DIR='{self.folder}'",
            *self.row.overrides,
        ]


@dataclass(frozen=True)
class Scores:
    knn: float
    linear: float
    untrained_knn: float
    untrained_linear: float
    # student or teacher of a method that has both, model otherwise.
    network: str = "model"


@dataclass(frozen=True)
class Cost:
    batch: int
    step_ms: float
    memory_mib: float


class Measured:
    """Results of earlier calls: by row and its config, scores by seed and the cost, each with the
    commit of the code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._all = json.loads(path.read_text()) if path.exists() else {}

    def of(self, row: Row) -> dict[str, Any]:
        config = _digest(row.yaml, row.overrides)
        if self._all.get(row.name, {}).get("config") != config:
            self._all[row.name] = {"config": config, "scores": {}, "cost": None}
        entry = cast(dict[str, Any], self._all[row.name])
        entry["trained_on"] = _sources(row.yaml)
        if row.variant:
            entry["variant"] = {"method": row.method, "overrides": list(row.overrides)}
        return entry

    def forget_other_code(self, row: Row, code: str) -> None:
        """Drop the results of other commits."""
        entry = self.of(row)
        entry["scores"] = {k: v for k, v in entry["scores"].items() if v.get("code") == code}
        if entry["cost"] and entry["cost"].get("code") != code:
            entry["cost"] = None

    def rows(self) -> list[Row]:
        """The rows whose configs have not changed."""
        rows = [self._row(name) for name in self._all]
        return [
            row
            for row in rows
            if row.yaml.exists()
            and self._all[row.name]["config"] == _digest(row.yaml, row.overrides)
        ]

    def _row(self, name: str) -> Row:
        of = self._all[name].get("variant")
        if of is None:
            return Row(name)
        return Row(of["method"], name.removeprefix(f"{of['method']}, "), tuple(of["overrides"]))

    def save(self) -> None:
        text = json.dumps(self._all, indent=1, sort_keys=True)
        self.path.write_text(text + "\n", encoding="utf-8")


def _digest(config: Path, overrides: Sequence[str] = ()) -> str:
    values = json.dumps(_said(config), sort_keys=True)
    values += "".join(f"\n{each}" for each in overrides)
    return hashlib.sha256(values.encode()).hexdigest()[:12]


def _said(config: Path) -> dict[str, Any]:
    """The values of the file and those that it is based on."""
    return compose([f"config={config.stem}"], [str(config.parent)]).said()


def _sources(config: Path) -> list[str]:
    return cast(list[str], _said(config)["config"]["DATA"]["TRAIN"]["DATA_SOURCES"])


def scores_of(job: Job) -> Scores:
    """Train and evaluate, as far as that is not done yet."""
    trained = job.folder / "trained"
    if not trained.exists():
        _call(job, [])
        trained.touch()
    report = job.folder / "evaluation.json"
    if not report.exists():
        _call(job, ["+config/benchmark/frozen=shapes"])
    judged = json.loads(report.read_text())
    scores = {each["features"]: each for each in judged["scores"]}
    of, untrained = scores["trained"], scores["untrained"]
    return Scores(
        _only(of["knn"]),
        of["linear"],
        _only(untrained["knn"]),
        untrained["linear"],
        judged["network"],
    )


def cost_of(row: Row, folder: Path) -> Cost:
    """Time and memory of two epochs of a run that is alone on the machine."""
    job = Job(row, 0, folder / f"{row.file_name}_cost")
    shutil.rmtree(job.folder, ignore_errors=True)  # the tool's own folder, from a stopped call
    memory = _call(job, ["config.OPTIMIZER.num_epochs=2", "config.LOG_FREQUENCY=5"])
    return Cost(memory_mib=memory, **_step(job.folder))


def _only(knn: dict[str, float]) -> float:
    (value,) = knn.values()
    return value


def _call(job: Job, more: list[str]) -> float:
    """Run the command, with its output in a file. Returns its peak memory in MiB."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / "output.log").open("ab") as output:
        process = subprocess.Popen(
            [*RUN, *job.overrides, *more],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = (job.folder / "output.log").read_text(errors="replace")[-2000:]
        raise SystemExit(f"{job.row.name}, seed {job.seed}, failed:\n{tail}")
    return usage.ru_maxrss / 1024


def _step(folder: Path) -> dict[str, float]:
    """Images per step, and its time: the median over the run's log entries except the first."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["images_per_s"] for line in lines if line["kind"] == "step"][1:]
    config = yaml.safe_load((folder / "config.yaml").read_text())["config"]
    batch: int = config["DATA"]["TRAIN"]["BATCHSIZE_PER_REPLICA"]
    return {"batch": batch, "step_ms": 1000.0 * batch / statistics.median(speeds)}


def table(measured: dict[str, dict[str, Any]]) -> str:
    """Markdown: mean over seeds, with the range if there are several. Best kNN first."""
    titles = ["method", "network", "seeds", "kNN %", "linear %"]
    titles += ["untrained kNN %", "untrained linear %"]
    titles += ["batch", "ms/step", "MiB", "code"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    rows = {name: list(of["scores"].values()) for name, of in measured.items() if of["scores"]}
    for name in sorted(rows, key=lambda name: -_mean(rows[name], "knn")):
        networks = sorted({row["network"] for row in rows[name]})
        cells = [_titled(name, measured[name]), ", ".join(networks), str(len(rows[name]))]
        cells += [_spread(rows[name], key) for key in ("knn", "linear")]
        cells += [f"{_mean(rows[name], key):.1f}" for key in ("untrained_knn", "untrained_linear")]
        cost = measured[name]["cost"]
        cells += [f"{cost[key]:.0f}" if cost else "" for key in ("batch", "step_ms", "memory_mib")]
        cells.append(_commits([*rows[name], *([cost] if cost else [])]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _titled(name: str, of: dict[str, Any]) -> str:
    """The name, with the training data if it is not the usual one."""
    sources = of.get("trained_on", USUAL)
    return name if sources == USUAL else f"{name} (trained on `{', '.join(sources)}`)"


def _commits(figures: Sequence[dict[str, Any]]) -> str:
    return ", ".join(sorted({each.get("code", "not recorded") for each in figures}))


def _mean(rows: list[dict[str, float]], key: str) -> float:
    return statistics.mean(row[key] for row in rows)


def _spread(rows: list[dict[str, float]], key: str) -> str:
    values = [row[key] for row in rows]
    text = f"{statistics.mean(values):.1f}"
    return text if len(values) == 1 else f"{text} ({min(values):.1f} to {max(values):.1f})"


def write_table(text: str, doc: Path) -> None:
    """Replace the text between the two marks of the document."""
    old = doc.read_text()
    before, _, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{doc} has no lines {BEGIN!r} and {END!r} to write between.")
    doc.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main(arguments: list[str] | None = None) -> int:
    known = sorted(path.stem for path in (ROOT / "configs" / "quickstart").glob("*.yaml"))
    options = _options(known, arguments)
    measured, code = Measured(options.measured), code_commit()
    rows = [Row(method, *options.variant) for method in options.methods or known]
    for row in rows if options.again else ():
        measured.forget_other_code(row, code)
    folder = options.folder / code
    jobs = [
        Job(row, seed, folder / f"{row.file_name}_seed{seed}")
        for seed in options.seeds
        for row in rows
        if str(seed) not in measured.of(row)["scores"]
    ]
    began = time.monotonic()

    def keep(what: str) -> None:
        print(f"[{(time.monotonic() - began) / 60:.0f} min] {what}", flush=True)
        measured.save()
        rows = measured.rows()
        write_table(table({row.name: measured.of(row) for row in rows}), options.doc)

    with ThreadPoolExecutor(options.at_once) as pool:
        for number, (job, scores) in enumerate(zip(jobs, pool.map(scores_of, jobs)), start=1):
            _expect_same(code)
            measured.of(job.row)["scores"][str(job.seed)] = {**asdict(scores), "code": code}
            keep(
                f"{number}/{len(jobs)}: {job.row.name} seed {job.seed}: "
                f"kNN {scores.knn:.1f} %, linear {scores.linear:.1f} %"
            )
    for row in rows:
        if measured.of(row)["cost"] is None:
            cost = cost_of(row, folder)
            _expect_same(code)
            measured.of(row)["cost"] = {**asdict(cost), "code": code}
            keep(f"{row.name}: {cost.step_ms:.0f} ms a step of {cost.batch}")
    keep("done")
    return 0


def _options(known: list[str], arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"of {', '.join(known)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--again", action="store_true", help="measure rows of other commits again")
    parser.add_argument(
        "--variant", type=_variant, default=(), metavar="'NAME: OVERRIDE ...'",
        help="measure the METHODs with these overrides, as separate rows",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "methods")
    parser.add_argument("--at-once", type=int, default=1, help="runs in parallel")
    parser.add_argument("--doc", type=Path, default=DOC, help="the file with the table")
    parser.add_argument("--measured", type=Path, default=MEASURED, help="the file with the results")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.methods if name not in known]
    if unknown:
        parser.error(f"there is no configs/quickstart/{unknown[0]}.yaml; known: {', '.join(known)}")
    if options.variant and not options.methods:
        parser.error("--variant: of which METHODs?")
    return options


def _variant(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, overrides = text.partition(":")
    if not name.strip() or not overrides.strip():
        raise argparse.ArgumentTypeError("expected a name, a colon and overrides")
    return name.strip(), tuple(shlex.split(overrides))


if __name__ == "__main__":
    sys.exit(main())
