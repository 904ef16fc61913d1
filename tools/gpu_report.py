#!/usr/bin/env python3
"""Test and measure the engine on a GPU, and write one report.

    make gpu                                        or, with packages from a folder: WHEELS=DIR
    python tools/gpu_report.py --out docs/gpu       with the packages that are installed

It runs the tests marked `gpu`, then tools/perf_measurement/bench_gpu.py, and writes
`<card>-<date>.md` and `.json` into the folder. Each part has a time limit; what a part had found
when it was stopped is in the report, which is written after each part. So are the last lines of a
part that ended early. The exit status is 1 if a test or a row failed, or a part did not run.

`--device cpu --tiny` tests the command itself on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from threading import Thread
from typing import IO, Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf_measurement"))
import bench_gpu

ROOT = Path(__file__).resolve().parents[1]
MINUTES = {"tests": 3.5, "bench": 3.5}
STOPPED = "stopped at its time limit"


@dataclass
class Report:
    machine: dict[str, str]
    tests: dict[str, Any] = field(default_factory=dict)
    bench: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, list[str]] = field(default_factory=dict)  # of parts that ended early

    def is_good(self) -> bool:
        """Did every part run, and did all that ran pass?"""
        rows = [row for rows in self.bench.values() for row in rows]
        failed = self.tests.get("failed", 0) + sum("error" in row for row in rows)
        ran = {"tests": self.tests.get("passed", 0), "bench": len(rows)}
        ended = [part for part, (how, *_) in self.ends.items() if how != STOPPED or not ran[part]]
        return not failed and not ended

    def name(self) -> str:
        card = re.sub(r"\W+", "-", self.machine["card"]).strip("-").lower()
        return f"{card}-{self.machine['date']}"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.name()
        path.with_suffix(".json").write_text(json.dumps(asdict(self), indent=1) + "\n")
        path.with_suffix(".md").write_text(self.markdown())

    def markdown(self) -> str:
        facts = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        parts = [f"# {self.machine['card']}", f"`python tools/gpu_report.py`: {facts}."]
        if self.tests:
            counts = ", ".join(
                f"{self.tests[key]} {key}" for key in ("passed", "failed", "skipped")
            )
            parts.append(f"## Tests\n\n`pytest -m gpu`: {counts}.")
            parts += [f"- `{name}`: {why}" for name, why in self.tests["failures"].items()]
        for title, rows in self.bench.items():
            parts.append(f"## {title}\n\n{bench_gpu.table(rows)}")
        for part, (how, *last) in self.ends.items():
            parts.append(f"## The {part}: {how}")
            parts += ["```\n" + "\n".join(last) + "\n```"] if last else []
        return "\n\n".join(parts) + "\n"


def machine(device: str) -> dict[str, str]:
    on_gpu = device.startswith("cuda")
    return {
        "card": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda if on_gpu else None),
        "python": sys.version.split()[0],
    }


# What can be said on a GPU alone comes first.
FIRST = ("tests/gpu/test_waits.py", "tests/gpu/test_methods.py", "tests/gpu")
# Processes: most of a small test is spent on the host.
AT_ONCE = max(2, min(14, (os.cpu_count() or 2) - 2))


def run_tests(given: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "tests.gpu.results"]
        command += ["-W", "default"]  # other versions of packages warn of other things
        if given.tiny:
            command += [FIRST[0], "-k", "simsiam"]
        else:
            command += [*FIRST, *_marked(), "-n", str(AT_ONCE), "--dist", "load"]
        environment = {**_environment(given), "SSLENGINE_RESULTS": str(results)}
        end = _within(command, MINUTES["tests"] * given.patience, environment)
        report.tests = _counted(results)
        # Status 1 says that a test failed, which is counted.
        if end and not (end[0] == _status(1) and report.tests["failed"]):
            report.ends["tests"] = end


def _marked() -> list[str]:
    """Test files elsewhere that have tests for a GPU."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    marked = (path for path in files if "mark.gpu" in path.read_text(encoding="utf-8"))
    return [str(path.relative_to(ROOT)) for path in marked]


def _environment(given: argparse.Namespace) -> dict[str, str]:
    ours = {"SSLENGINE_GPU_TESTS": given.device, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return {**kept, **ours, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _within(command: list[str], minutes: float, environment: dict[str, str]) -> list[str]:
    """How it ended, and its last lines, unless it ended well."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    last: deque[str] = deque(maxlen=20)
    reader = Thread(target=_shown, args=(process.stdout, last), daemon=True)
    reader.start()
    try:
        status = process.wait(timeout=60 * minutes)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own processes, too
        process.wait()
        return [STOPPED]
    finally:
        reader.join(timeout=10)
    return [_status(status), *last] if status else []


def _shown(lines: IO[str], last: deque[str]) -> None:
    with lines:
        for line in lines:
            print(line, end="", flush=True)
            last.append(line.rstrip())


def _status(number: int) -> str:
    return f"ended with status {number}"


def _counted(results: Path) -> dict[str, Any]:
    """Of the lines that tests/gpu/results.py writes."""
    counts: dict[str, Any] = {"passed": 0, "failed": 0, "skipped": 0, "failures": {}}
    for line in results.read_text().splitlines() if results.exists() else ():
        test = json.loads(line)
        counts[test["outcome"]] += 1
        if test["outcome"] == "failed":
            counts["failures"][test["name"]] = test["why"]
    return counts


def run_bench(given: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        command = [sys.executable, bench_gpu.__file__, "--device", given.device, "--out", str(out)]
        command += ["--tiny", "--case", "simclr"] if given.tiny else []
        end = _within(command, MINUTES["bench"] * given.patience, _environment(given))
        report.bench = json.loads(out.read_text()) if out.exists() else {}
        if end:
            report.ends["bench"] = end


def main(arguments: list[str] | None = None) -> Report:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", choices=MINUTES, nargs="+", default=list(MINUTES))
    parser.add_argument("--patience", type=float, default=1.0, help="times the usual limits")
    parser.add_argument("--tiny", action="store_true", help="a little of each part")
    given = parser.parse_args(arguments)
    bench_gpu.expect_there(given.device)
    report = Report(machine(given.device))
    parts: dict[str, Callable[[argparse.Namespace, Report], None]]
    parts = {"tests": run_tests, "bench": run_bench}
    for part, run in parts.items():
        if part in given.only:
            run(given, report)
            report.write(given.out)
    print(report.markdown())
    return report


if __name__ == "__main__":
    sys.exit(not main().is_good())
