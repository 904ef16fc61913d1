#!/usr/bin/env python3
"""Train every method, evaluate it, and write the tables of docs/methods.md.

    python tools/methods_table.py                        # every config of configs/quickstart
    python tools/methods_table.py simclr moco --seeds 0  # some of them, one seed
    python tools/methods_table.py --again                # measure rows of other commits again
    python tools/methods_table.py byol --variant "views apart: config.MODEL.VIEWS_APART=true"
    python tools/methods_table.py dinov2 ibot --attentive
    python tools/methods_table.py dinov2 small/simclr --images fashion

--variant adds a row for each named method with these overrides, --attentive an attentive probe,
--fine-tuned the accuracy when all layers are trained with labels, beside that from random weights
(500 labels of shapes, 1,000 of Fashion-MNIST, all 2,711 of emoji).
--images: other images than the built-in ones, with as many steps. `fashion` is Debian's package
dataset-fashion-mnist; `emoji` the folder runs/emoji, which tools/emoji_set.py makes of npm's
emoji-datasource-google. A method with a slash is any config.

Results are written to docs/methods.json, with the commit of the code that trained. A row is
measured again if the method's YAML, or one that it is based on, has changed (except comments), and
with --again if it has another commit. A stopped run is resumed by the same code, in its folder
below runs/methods. Time is that of a train step, memory that of the main process: both are
measured in two epochs that each method runs alone after all trainings, which may run in parallel
(--at-once).
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # found as a script, too
from sslengine.evaluate.outcome import VERSIONS
from tools.methods_runs import (
    ROOT,
    SETS,
    SHAPES,
    Job,
    Row,
    config_of,
    cost_of,
    digest,
    scores_of,
)

DOC = ROOT / "docs" / "methods.md"
MEASURED = ROOT / "docs" / "methods.json"
BEGIN, END = "<!-- table: made by tools/methods_table.py -->", "<!-- end of table -->"
BEGINS = {SHAPES: BEGIN} | {
    name: f"<!-- table of {name}: made by tools/methods_table.py -->" for name in SETS
}


# What the results depend on. Documents and the table itself may change meanwhile.
CODE = ("sslengine", "configs/quickstart", "configs/small", "configs/benchmark", "configs/base")
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


class Measured:
    """Results of earlier calls: by row and its config, scores by seed and the cost, each with the
    commit of the code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._all = json.loads(path.read_text()) if path.exists() else {}

    def of(self, row: Row) -> dict[str, Any]:
        config = digest(row.yaml, row.overrides)
        if self._all.get(row.key, {}).get("config") != config:
            self._all[row.key] = {"config": config, "scores": {}, "cost": None}
        entry = cast(dict[str, Any], self._all[row.key])
        if "steps" not in entry:
            entry |= asdict(row.budget())
        if row.images == SHAPES:
            entry["trained_on"] = config_of(row.yaml)["DATA"]["TRAIN"]["DATA_SOURCES"]
        else:
            entry["images"] = row.images
        if row.variant:
            entry["variant"] = {"method": row.method, "overrides": list(row.overrides)}
        return entry

    def forget_other_code(self, row: Row, code: str) -> None:
        """Drop the results of other commits."""
        entry = self.of(row)
        entry["scores"] = {k: v for k, v in entry["scores"].items() if v.get("code") == code}
        if entry["cost"] and entry["cost"].get("code") != code:
            entry["cost"] = None

    def rows(self, images: str | None = None) -> list[Row]:
        """The rows whose configs have not changed; of these images, if they are named."""
        rows = [self._row(key) for key in self._all]
        return [
            row
            for row in rows
            if images in (None, row.images)
            and row.yaml.exists()
            and self._all[row.key]["config"] == digest(row.yaml, row.overrides)
        ]

    def _row(self, key: str) -> Row:
        images, of = self._all[key].get("images", SHAPES), self._all[key].get("variant")
        name = key.removesuffix(f" on {images}")
        if of is None:
            return Row(name, images=images)
        variant = name.removeprefix(f"{of['method']}, ")
        return Row(of["method"], variant, tuple(of["overrides"]), images)

    def save(self) -> None:
        text = json.dumps(self._all, indent=1, sort_keys=True)
        self.path.write_text(text + "\n", encoding="utf-8")


def table(measured: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table for each kind of trunk, rows by name.

    Scores are the mean and the range over the seeds that no hyper-parameter was chosen on.
    Columns without any number are left out.
    """
    kinds: dict[str, list[dict[str, str]]] = {}
    for name in sorted(measured):
        if measured[name]["scores"]:
            kinds.setdefault(measured[name]["trunk"], []).append(_cells(name, measured[name]))
    return "\n\n".join(f"{kind}:\n\n{_markdown(kinds[kind])}" for kind in sorted(kinds))


def _cells(name: str, of: dict[str, Any]) -> dict[str, str]:
    free = {seed: each for seed, each in of["scores"].items() if seed != CHOSEN_ON}
    seeds, cost = free or of["scores"], of["cost"]
    scores = list(seeds.values())
    cells = {"method": _titled(name, of), "steps": f"{of['steps']:,}"}
    cells["images seen"] = f"{of['images_seen']:,}"
    cells["network"] = ", ".join(sorted({row["network"] for row in scores}))
    cells["seeds"] = ", ".join(seeds) + ("" if free else f" {CHOSEN}")
    for prefix, show in (("", _spread), ("untrained ", _plain), ("pixels ", _plain)):
        for kind, title in PROBES.items():
            cells[f"{prefix}{title}"] = show(scores, f"{prefix.strip()}_{kind}".strip("_"))
    cells["linear %"] += "" if all(map(_is_current, scores)) else f" {OLD_PROBE}"
    for key, title in COSTS.items():
        cells[title] = f"{cost[key]:.0f}" if cost else ""
    cells["code"] = _commits([*scores, *([cost] if cost else [])])
    return cells


def _markdown(rows: list[dict[str, str]]) -> str:
    shown = [title for title in rows[0] if any(cells[title] for cells in rows)]
    made = [shown, *([cells[title] for title in shown] for cells in rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in made)
    return "\n".join([head, "|---" * len(shown) + "|", *body])


PROBES = {"knn": "kNN %", "linear": "linear %", "attentive": "attentive %", "tuned": "fine-tuned %"}
COSTS = {"batch": "batch", "step_ms": "ms/step", "memory_mib": "MiB"}


# Behind scores of an earlier version of the linear probe.
OLD_PROBE = "†"
# Hyper-parameters were chosen by the scores of this seed. Rows without another seed are marked.
CHOSEN_ON, CHOSEN = "0", "‡"


def _is_current(score: dict[str, Any]) -> bool:
    return bool(score.get("linear_version", 1) == VERSIONS["linear"])


def _titled(name: str, of: dict[str, Any]) -> str:
    """The name, with the training data if it is not the usual one."""
    sources = of.get("trained_on", USUAL)
    return name if sources == USUAL else f"{name} (trained on `{', '.join(sources)}`)"


def _commits(figures: Sequence[dict[str, Any]]) -> str:
    return ", ".join(sorted({each.get("code", "not recorded") for each in figures}))


def _mean(rows: list[dict[str, float]], key: str) -> float:
    return statistics.mean(row[key] for row in rows)


def _plain(rows: list[dict[str, float]], key: str) -> str:
    """The mean; nothing if it was not measured of all seeds."""
    known = all(row.get(key) is not None for row in rows)
    return f"{_mean(rows, key):.1f}" if known else ""


def _spread(rows: list[dict[str, float]], key: str) -> str:
    text = _plain(rows, key)
    if not text or len(rows) == 1:
        return text
    values = [row[key] for row in rows]
    return f"{text} ({min(values):.1f} to {max(values):.1f})"


def write_table(text: str, doc: Path, begin: str = BEGIN) -> None:
    """Replace the text between the two marks of the document."""
    old = doc.read_text()
    before, _, rest = old.partition(begin)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{doc} has no lines {begin!r} and {END!r} to write between.")
    doc.write_text(f"{before}{begin}\n\n{text}\n\n{END}{after}")


def main(arguments: list[str] | None = None) -> int:
    known = sorted(path.stem for path in (ROOT / "configs" / "quickstart").glob("*.yaml"))
    options = _options(known, arguments)
    measured, code = Measured(options.measured), code_commit()
    variant, overrides = options.variant or ("", ())
    rows = [Row(method, variant, overrides, options.images) for method in options.methods or known]
    for row in rows if options.again else ():
        measured.forget_other_code(row, code)
    folder, more = options.folder / code, _more(options)
    jobs = [
        Job(row, seed, folder / f"{row.file_name}_seed{seed}")
        for seed in options.seeds
        for row in rows
        if _is_missing(measured.of(row)["scores"].get(str(seed)), more)
    ]
    began = time.monotonic()

    def keep(what: str) -> None:
        print(f"[{(time.monotonic() - began) / 60:.0f} min] {what}", flush=True)
        measured.save()
        rows = measured.rows(options.images)
        text = table({row.name: measured.of(row) for row in rows})
        write_table(text, options.doc, BEGINS[options.images])

    with ThreadPoolExecutor(options.at_once) as pool:
        scored = zip(jobs, pool.map(partial(scores_of, more=more), jobs))
        for number, (job, scores) in enumerate(scored, start=1):
            _expect_same(code)
            measured.of(job.row)["scores"][str(job.seed)] = {**asdict(scores), "code": code}
            keep(
                f"{number}/{len(jobs)}: {job.row.key} seed {job.seed}: "
                f"kNN {scores.knn:.1f} %, linear {scores.linear:.1f} %"
            )
    for row in rows if options.images == SHAPES else ():  # elsewhere it is the same
        if measured.of(row)["cost"] is None:
            cost = cost_of(row, folder)
            _expect_same(code)
            measured.of(row)["cost"] = {**asdict(cost), "code": code}
            keep(f"{row.name}: {cost.step_ms:.0f} ms a step of {cost.batch}")
    keep("done")
    return 0


def _more(options: argparse.Namespace) -> list[str]:
    asked = {"attentive": options.attentive, "tuned": options.fine_tuned}
    return [each for each, is_asked in asked.items() if is_asked]


def _is_missing(scores: dict[str, Any] | None, more: Sequence[str]) -> bool:
    return scores is None or any(scores.get(each) is None for each in more)


def _options(known: list[str], arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"of {', '.join(known)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", choices=BEGINS, default=SHAPES, help="see above")
    parser.add_argument("--attentive", action="store_true", help="an attentive probe, too")
    parser.add_argument("--fine-tuned", action="store_true", help="see above")
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
    unknown = [name for name in options.methods if not Row(name).yaml.exists()]
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
