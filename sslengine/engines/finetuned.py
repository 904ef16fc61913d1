"""The results of fine-tuning: a file in each folder of `finetune`, all in evaluation.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sslengine.atomic import write_json

FOLDER = "finetune"
RESULT = "finetuned.json"
REPORT = "evaluation.json"


def write_result(folder: Path, row: dict[str, Any]) -> None:
    write_json(folder / RESULT, row)


def finetuned(run_dir: Path) -> list[dict[str, Any]]:
    """The results of all that was fine-tuned from the run, the oldest first."""
    paths = sorted((run_dir / FOLDER).glob(f"*/{RESULT}"), key=lambda each: each.stat().st_mtime)
    return [json.loads(path.read_text()) for path in paths]


def as_protocols(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By the network that they started from: what show_protocols takes. Newer weights win."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        of = found.setdefault(row["features"], {})
        of[row["protocol"]] = {"metrics": row["metrics"], "notes": []}
    return found


def add_to_report(run_dir: Path) -> None:
    path = run_dir / REPORT
    report = json.loads(path.read_text()) if path.exists() else {}
    report["finetuned"] = finetuned(run_dir)
    write_json(path, report)
