#!/usr/bin/env python3
"""Train every method on the built-in images, judge it, and write the table of docs/methods.md.

    python tools/methods_table.py                        # every config of configs/quickstart
    python tools/methods_table.py simclr moco --seeds 0  # some of them, one seed

Each run stays in its folder below runs/methods: what is done is not done again, what was
stopped goes on. Time is of a train step, memory of the main process; both depend on the
machine and on what else it does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
RUN = [sys.executable, str(ROOT / "tools" / "run_distributed_engines.py")]
DOC = ROOT / "docs" / "methods.md"
BEGIN, END = "<!-- table: made by tools/methods_table.py -->", "<!-- end of table -->"


@dataclass(frozen=True)
class Job:
    method: str
    seed: int
    folder: Path

    @property
    def overrides(self) -> list[str]:
        return [
            f"config=quickstart/{self.method}",
            f"config.SEED_VALUE={self.seed}",
            f"config.CHECKPOINT.DIR='{self.folder}'",
        ]


@dataclass(frozen=True)
class Result:
    knn: float
    linear: float
    untrained_knn: float
    untrained_linear: float
    batch: int
    step_ms: float
    memory_mib: float


def run_job(job: Job) -> Result:
    """Train, judge, read. What an earlier call has finished is only read."""
    cost = job.folder / "cost.json"
    if not cost.exists():
        memory = _call(job, [])
        # Written last: it says that training is complete.
        cost.write_text(json.dumps({"memory_mib": memory, **_step(job.folder)}))
    report = job.folder / "evaluation.json"
    if not report.exists():
        _call(job, ["+config/benchmark/frozen=shapes"])
    scores = {each["features"]: each for each in json.loads(report.read_text())["scores"]}
    trained, untrained = scores["trained"], scores["untrained"]
    return Result(
        _only(trained["knn"]),
        trained["linear"],
        _only(untrained["knn"]),
        untrained["linear"],
        **json.loads(cost.read_text()),
    )


def _only(knn: dict[str, float]) -> float:
    (value,) = knn.values()
    return value


def _call(job: Job, more: list[str]) -> float:
    """Run the command; its peak memory in MiB. What it prints goes to a file."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            [*RUN, *job.overrides, *more],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = (job.folder / "output.txt").read_text(errors="replace")[-2000:]
        raise SystemExit(f"{job.method}, seed {job.seed}, failed:\n{tail}")
    return usage.ru_maxrss / 1024


def _step(folder: Path) -> dict[str, float]:
    """Images in a step, and its time: the median over the run's log entries but the first."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["images_per_s"] for line in lines if line["kind"] == "step"][1:]
    config = yaml.safe_load((folder / "config.yaml").read_text())["config"]
    batch: int = config["DATA"]["TRAIN"]["BATCHSIZE_PER_REPLICA"]
    return {"batch": batch, "step_ms": 1000.0 * batch / statistics.median(speeds)}


def table(results: dict[str, list[Result]]) -> str:
    """Markdown: mean over seeds, and the range where there are several. Best kNN first."""
    titles = ["method", "seeds", "kNN %", "linear %", "untrained kNN %", "untrained linear %"]
    titles += ["batch", "ms/step", "MiB"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    order = sorted(results, key=lambda name: -_mean(results[name], "knn"))
    for name in order:
        rows = results[name]
        cells = [name, str(len(rows))]
        cells += [_spread(rows, key) for key in ("knn", "linear")]
        cells += [
            f"{_mean(rows, key):.{digits}f}"
            for key, digits in (("untrained_knn", 1), ("untrained_linear", 1), ("batch", 0),
                                ("step_ms", 0), ("memory_mib", 0))
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(rows: list[Result], key: str) -> float:
    return statistics.mean(getattr(row, key) for row in rows)


def _spread(rows: list[Result], key: str) -> str:
    values = [getattr(row, key) for row in rows]
    text = f"{statistics.mean(values):.1f}"
    return text if len(values) == 1 else f"{text} ({min(values):.1f} to {max(values):.1f})"


def write_table(text: str, doc: Path) -> None:
    """Between the two marks of the document, which keeps all else."""
    old = doc.read_text()
    before, _, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{doc} has no lines {BEGIN!r} and {END!r} to write between.")
    doc.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main(arguments: list[str] | None = None) -> int:
    known = sorted(path.stem for path in (ROOT / "configs" / "quickstart").glob("*.yaml"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"of {', '.join(known)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "methods")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument("--doc", type=Path, default=DOC, help="the file that holds the table")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.methods if name not in known]
    if unknown:
        parser.error(f"there is no configs/quickstart/{unknown[0]}.yaml; known: {', '.join(known)}")
    jobs = [
        Job(method, seed, options.folder / f"{method}_seed{seed}")
        for seed in options.seeds
        for method in options.methods or known
    ]
    results: dict[str, list[Result]] = {}
    began = time.monotonic()
    with ThreadPoolExecutor(options.at_once) as pool:
        for number, (job, result) in enumerate(zip(jobs, pool.map(run_job, jobs)), start=1):
            results.setdefault(job.method, []).append(result)
            minutes = (time.monotonic() - began) / 60
            print(
                f"[{number}/{len(jobs)}, {minutes:.0f} min] {job.method} seed {job.seed}: "
                f"kNN {result.knn:.1f} %, linear {result.linear:.1f} %",
                flush=True,
            )
            write_table(table(results), options.doc)
    return 0


if __name__ == "__main__":
    sys.exit(main())
