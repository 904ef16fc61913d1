"""The report of `judge`: its files in the run's folder, and the tables on the screen.

evaluation.json             the newest report
judgements/NAME.json        the same of each set of images: NAME is made of their fingerprints
judgements/NAME.npz         the answer to each of its test images
finetune/*/, sweep/*/       what was trained from the run: a file in the folder of each
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sslengine.atomic import whole_file, write_json
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.judged_view import described
from sslengine.data.options import DataOptions
from sslengine.engines.judged_networks import trunk_name
from sslengine.engines.run import Run
from sslengine.engines.scoring import Score
from sslengine.models.options import ModelOptions
from sslengine.monitor.run_facts import JUDGEMENTS, REPORT, name_of_images

FINETUNE, SWEEP = "finetune", "sweep"  # folders in the run's
_RESULT = {FINETUNE: "finetuned.json", SWEEP: "swept.json"}


def write_result(
    run: Run, folder: Path, kind: str, weights: Path | None, digest: str, row: dict[str, Any]
) -> None:
    """Write what a training from the run gave, with how its network was trained and tested."""
    data, model = read(run.config, DataOptions), read(run.config, ModelOptions)
    views = (described([*map(dict, each.TRANSFORMS)]) for each in (data.TRAIN, data.TEST))
    about = {
        "weights": str(weights or "as initialised"),
        "weights_sha256": digest,
        "network": model.WEIGHTS_INIT.NETWORK,
        "trunk": trunk_name(model),
        **dict(zip(("train_view", "view"), views)),
        "seeds": [read(run.config, RunOptions).SEED_VALUE],
        "number_of_seeds": 1,
        "folder": str(folder.relative_to(run.run_dir)),
    }
    write_json(folder / _RESULT[kind], {**row, **about})


def read_results(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Read what was trained from the run with labels, by the report's keys; the oldest first."""
    found = {}
    for kind, name in _RESULT.items():
        paths = (run_dir / kind).glob(f"*/{name}")
        rows = sorted(paths, key=lambda each: each.stat().st_mtime)
        found[Path(name).stem] = [json.loads(path.read_text()) for path in rows]
    return found


def sort_by_start(results: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Sort results by the network that they started from, for show_protocols. Newer weights win."""
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


def report_trained(run: Run) -> None:
    """Add what was trained from the run to its report, and show it."""
    found = read_results(run.run_dir)
    write_report(run.run_dir, _report(run.run_dir) | found)
    show_protocols(run.console, sort_by_start(found))


def add_notes(run_dir: Path, notes: Sequence[str]) -> None:
    """Note what was left out of all that was asked for; not where nothing was judged."""
    report = _report(run_dir)
    known = report.get("notes", [])
    new = [each for each in notes if each not in known]
    if report and new:
        write_report(run_dir, {**report, "notes": [*known, *new]})


def _report(run_dir: Path) -> dict[str, Any]:
    path = run_dir / REPORT
    return json.loads(path.read_text()) if path.exists() else {}


# ---- tables


def show_all(
    console: Console, scores: Sequence[Score], metric: str, chance: float | None, notes: list[str]
) -> None:
    show_label_free(console, {_kind(each): each.label_free for each in scores})
    show_protocols(console, {_kind(each): each.protocols for each in scores if each.protocols})
    for line in _chosen(scores):
        console.print(f"  chosen      {line}", markup=False)
    for note in notes:
        console.print(f"  note        {note}", markup=False)
    if any(score.knn for score in scores):
        console.print()
        show_scores(console, scores, metric, chance)


def _kind(score: Score) -> str:
    return f"{score.features}, {score.layer}"


def show_scores(
    console: Console, scores: Sequence[Score], metric: str = "accuracy", chance: float | None = None
) -> None:
    """Show a line for each kind of features and layer, with 95 % intervals: their longer half."""
    neighbours = list(next(score.knn for score in scores if score.knn))
    suffix = "" if metric == "accuracy" else f" {metric}"
    table = Table("features", "layer", box=None, pad_edge=False)
    names = {f"knn_{k}": f"kNN{suffix} (k={k})" for k in neighbours} | {"linear": f"linear{suffix}"}
    for title in names.values():
        table.add_column(title, justify="right")
    for score in scores:
        table.add_row(score.features, score.layer, *(_cell(score, name) for name in names))
    if chance is not None:
        answer = "largest class" if metric == "accuracy" else "random order"
        table.add_row("chance", answer, *([f"{chance:.1f} %"] * len(names)))
    console.print(table)


def _cell(score: Score, name: str) -> str:
    value = score.metrics.get(name)
    if value is None:
        return "-"
    if not (interval := score.intervals.get(name)):
        return f"{value:.1f} %"
    return f"{value:.1f} ±{max(value - interval[0], interval[1] - value):.1f} %"


def _chosen(scores: Sequence[Score]) -> list[str]:
    """Say by what the probe's penalty was chosen, and how often a network was drawn."""
    by: dict[str, list[str]] = {}
    for score in scores:
        if chosen := score.about.get("chosen_on", {}).get("linear"):
            by.setdefault(chosen, []).append(score.features)
    found = [f"the linear probe's penalty by {chosen}" for chosen in by]
    several = [each for each in scores if each.about.get("number_of_seeds", 1) > 1]
    found += [f"{each.features}: the mean of {each.about['number_of_seeds']} seeds, the interval "
              f"over these" for each in several]  # fmt: skip
    return found


def show_protocols(console: Console, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Show a column for each kind of features, a line for each metric."""
    table = Table("protocol", "metric", box=None, pad_edge=False)
    for kind in found:
        table.add_column(kind, justify="right")
    lines = {
        (name, metric): None
        for each in found.values()
        for name, of in each.items()
        for metric in of["metrics"]
    }
    for name, metric in lines:
        values = [each.get(name, {}).get("metrics", {}).get(metric) for each in found.values()]
        table.add_row(name, metric, *("-" if v is None else f"{v:.1f} %" for v in values))
    if lines:
        console.print(table)
    notes: dict[tuple[str, str], list[str]] = {}
    for kind, each in found.items():
        for name, of in each.items():
            for note in of["notes"]:
                notes.setdefault((name, note), []).append(kind)
    for (name, note), kinds in notes.items():
        whose = "" if len(kinds) == len(found) else f"{'; '.join(kinds)}: "
        console.print(f"  note        {name}: {whose}{note}", markup=False)


def show_label_free(console: Console, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Show a column for each kind of features, a line for each metric, and why there are gaps."""
    table = Table("without labels, TRAIN", box=None, pad_edge=False)
    for kind in found:
        table.add_column(kind, justify="right")
    whys: dict[str, None] = {}
    for name in next(iter(found.values()), {}):
        cells = [each[name] for each in found.values()]
        table.add_row(name, *("-" if each["why"] else f"{each['value']:.4g}" for each in cells))
        whys |= {f"{name}: {each['why']}": None for each in cells if each["why"]}
    if table.rows:
        console.print(table)
    for why in whys:
        console.print(f"  note        {why}", markup=False)
