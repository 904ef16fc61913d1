"""The metrics of a run, read back from its folder.

    rows = read("runs/quickstart/simclr")                    one dict a line, flat names
    rows = read("runs/quickstart/simclr", "phase", "test")   one a test phase
    pandas.DataFrame(rows)

A run that was killed and continued has each step once: the newest line of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sslengine.dotted import leaves
from sslengine.errors import SSLEngineError

_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def read(
    run_folder: str | Path, kind: str | None = "step", split: str | None = None
) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, oldest first.

    kind: step (at LOG_FREQUENCY), phase (at the end of an epoch), end, exception; None: all.
    split: train or test; None: both.
    """
    path = Path(run_folder) / "metrics.jsonl"
    if not path.is_file():
        raise SSLEngineError(
            f"{path} is not there: is {run_folder} the folder of a run, and was `json` among its "
            f"config.HOOKS.WRITERS?"
        )
    return [
        dict(flat(line))
        for line in read_nested(path)
        if kind in (None, line["kind"]) and split in (None, line["split"])
    ]


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines, without what is damaged; [] without a file."""
    found = []
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]


def read_nested(path: Path) -> list[dict[str, Any]]:
    """Return each step and each phase once, as it was written; [] without a file.

    A step that comes again replaces the first and all lines after it; a phase that comes again
    replaces the first in its place. A line of how a run ended is dropped where it was continued.
    """
    kept: list[dict[str, Any]] = []
    places: dict[tuple[Any, ...], int] = {}  # in `kept`, unless it was cut there since
    for line in read_lines(path):
        if not {"kind", "split", "iteration"} <= line.keys():
            continue
        while kept and _is_superseded(kept[-1], line):
            kept.pop()
        place = _place(line)
        if places.get(place, len(kept)) < len(kept) and _place(kept[places[place]]) == place:
            kept[places[place]] = line
        else:
            places[place] = len(kept)
            kept.append(line)
    return kept


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the same by name; None where a row has no such metric."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name nested values, `{"meter": {"top_1": 5.0}}` -> `meter.top_1`; "nan" is a number again."""
    for name, value in leaves(values):
        yield name, _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _is_superseded(last: dict[str, Any], line: dict[str, Any]) -> bool:
    if line["kind"] == "step":
        ended = last["kind"] in ("exception", "end")
        return ended or bool(last["iteration"] >= line["iteration"])
    return bool(last["kind"] == "exception" and line["kind"] == "phase")


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["kind"], line["split"], line["iteration"], line.get("epoch")
