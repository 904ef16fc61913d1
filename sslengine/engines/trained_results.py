"""The files of a run's results: the report of `judge`, and what sweeps and fine-tuning found.

evaluation.json             the newest report
judgements/NAME.json        the same of each set of images: NAME is made of their fingerprints
judgements/NAME.npz         the answer to each of its test images
finetune/*/, sweep/*/       a file in the folder of each
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.atomic import whole_file, write_json
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.judged_view import described
from sslengine.data.options import DataOptions
from sslengine.engines.judged_networks import trunk_name
from sslengine.engines.run import Run
from sslengine.models.options import ModelOptions
from sslengine.monitor.run_facts import JUDGEMENTS, REPORT, name_of_images

FINETUNE, SWEEP = "finetune", "sweep"  # folders in the run's
_RESULT = {FINETUNE: "finetuned.json", SWEEP: "swept.json"}


def write_result(folder: Path, kind: str, row: dict[str, Any]) -> None:
    write_json(folder / _RESULT[kind], row)


def about_of(run: Run) -> dict[str, Any]:
    """What a row says of how a network was trained and tested."""
    data, seed = read(run.config, DataOptions), read(run.config, RunOptions).SEED_VALUE
    views = {split: described([dict(each) for each in getattr(data, split).TRANSFORMS])
             for split in ("TRAIN", "TEST")}  # fmt: skip
    return {
        "trunk": trunk_name(read(run.config, ModelOptions)),
        "train_view": views["TRAIN"],
        "view": views["TEST"],
        "seeds": [seed],
        "number_of_seeds": 1,
    }


def results_of(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """What was trained from the run with labels, by the keys of the report; the oldest first."""
    found = {}
    for kind, name in _RESULT.items():
        paths = (run_dir / kind).glob(f"*/{name}")
        rows = sorted(paths, key=lambda each: each.stat().st_mtime)
        found[Path(name).stem] = [json.loads(path.read_text()) for path in rows]
    return found


def as_protocols(results: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """By the network that they started from: what show_protocols takes. Newer weights win."""
    found: dict[str, dict[str, Any]] = {}
    rows: Sequence[dict[str, Any]] = [row for each in results.values() for row in each]
    for row in rows:
        of = found.setdefault(row["features"], {})
        of[row["protocol"]] = {"metrics": row["metrics"], "notes": row.get("notes", [])}
    return found


def write_report(run_dir: Path, report: Mapping[str, Any]) -> None:
    """Replace the report, and that on the same images; reports on other images stay."""
    write_json(run_dir / REPORT, report)
    if report.get("images"):
        write_json(run_dir / JUDGEMENTS / f"{name_of_images(report['images'])}.json", report)


def write_answers(
    run_dir: Path, images: Mapping[str, Any], answers: Mapping[str, NDArray[Any]]
) -> None:
    with whole_file(run_dir / JUDGEMENTS / f"{name_of_images(images)}.npz") as file:
        arrays: dict[str, Any] = dict(answers)
        np.savez_compressed(file, **arrays)


def add_to_report(run_dir: Path) -> None:
    write_report(run_dir, _report(run_dir) | results_of(run_dir))


def add_notes(run_dir: Path, notes: Sequence[str]) -> None:
    """On what was left out of all that was asked for; not where nothing was judged."""
    report = _report(run_dir)
    known = report.get("notes", [])
    new = [each for each in notes if each not in known]
    if report and new:
        write_report(run_dir, {**report, "notes": [*known, *new]})


def _report(run_dir: Path) -> dict[str, Any]:
    path = run_dir / REPORT
    return json.loads(path.read_text()) if path.exists() else {}
