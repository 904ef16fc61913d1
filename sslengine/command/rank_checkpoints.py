"""`sslengine rank` of checkpoints: label-free metrics of each, and how far labels agree."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from sslengine.checkpoint import files
from sslengine.command import columns, documents
from sslengine.command.embed import ALL_OF_IT, check_columns
from sslengine.command.images import look
from sslengine.config.compose import overrides, typed
from sslengine.errors import (
    CheckpointError,
    ConfigError,
    MissingCheckpointError,
    UntrustedError,
    readable,
)
from sslengine.evaluation.label_free.agreement import LEAST, Interval
from sslengine.evaluation.label_free.inputs import measure
from sslengine.evaluation.label_free.ranking import Row, probe_of, ranked, score_of
from sslengine.predictor.checkpoints import Read, read_checkpoints
from sslengine.predictor.predictor import Predictor
from sslengine.progress import progress
from sslengine.registry import load_plugins
from sslengine.screen_console import LiteralConsole

FEW = 6  # checkpoints
AGREEMENTS = ("Spearman [95 %]", "Kendall [95 %]", "Spearman, linear")


def rank(given: argparse.Namespace) -> int:
    load_plugins(given.plugin, "--plugin")
    by_run = _by_run(given.runs)
    paths, networks, found, scores, probes = [], [], [], [], []
    count = sum(map(len, by_run.values()))
    with progress("ranking", count, "checkpoints", then="the table") as step:
        for each in _read_all(by_run, given):
            paths.append(str(each.checkpoint))
            networks.append(each.network)
            with progress(f"metrics of {each.checkpoint.name}"):
                found.append(measure(each.inputs))
                scores.append(score_of(each.inputs.features, each.labels))
                probes.append(probe_of(each.inputs.features, each.labels))
            step(1)
    if not found:
        raise CheckpointError("none of the checkpoints can be read.")
    rows = ranked(found, scores, probes)
    notes = _notes(rows, several=len(by_run) > 1 and given.data is None)
    if given.json:
        documents.show(_as_json(paths, networks, rows, notes))
    else:
        _show(paths, networks, rows, notes)
    return 0


def _read_all(by_run: dict[Path, list[Path]], given: argparse.Namespace) -> Iterator[Read]:
    for run, checkpoints in by_run.items():
        try:
            yield from _read_run(run, checkpoints, given)
        except UntrustedError as error:
            if len(by_run) == 1:
                raise
            print(readable(f"left out: {error}"), file=sys.stderr)


def _read_run(run: Path, checkpoints: list[Path], given: argparse.Namespace) -> Iterator[Read]:
    workers = given.workers
    values = {} if workers is None else {"DATA.NUM_DATALOADER_WORKERS": workers}
    predictor = Predictor(
        run, nearest=0, device=given.device, network=given.network,
        overrides=[*overrides({**values, **_images(run, given)}), *typed(given.values)],
        trust_config=given.trust_config,
    )  # fmt: skip
    yield from read_checkpoints(predictor, checkpoints, given.rows, given.views)


def _images(run: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Keys of --data, or none: the run's own images."""
    asked = columns.of_split(given.image_column, given.label_column)
    if given.data is None:
        if asked:
            raise ConfigError(
                "--image-column and --label-column are of the images that --data names: say "
                "--data, for a run's own images too."
            )
        return {}
    said = columns.of_run(run, given.data, {**columns.of_set(given.values), **asked})
    found = look(given.data, said.get)
    check_columns(found, asked, said)
    return {**ALL_OF_IT, **found.keys_over(labels=found.has_classes)}


def _by_run(given: Sequence[Path]) -> dict[Path, list[Path]]:
    """The checkpoints of each run, oldest first, or in the order given."""
    by_run: dict[Path, list[Path]] = {}
    for path in given:
        folder = path.suffix != ".shards" and path.is_dir()
        found = files.list_checkpoints(path)[::-1] if folder else [path]
        if not found or not path.exists():
            raise MissingCheckpointError(f"{path}: there is no checkpoint.")
        run = found[0].absolute().parent.parent
        if found[0].absolute().parent.name != "checkpoints" or not (run / "config.yaml").is_file():
            raise ConfigError(
                f"{path}: expected the folder `checkpoints` of a run, or checkpoints in it: they "
                f"are read with the config.yaml of their run."
            )
        by_run.setdefault(run, []).extend(found)
    return by_run


def _notes(rows: Sequence[Row], several: bool) -> list[str]:
    """Why values are missing, once for each reason."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        for number, each in enumerate(row.values, 1):
            if each.why:
                notes.setdefault(each.why, []).append(f"{row.name} ({number})")
    found = [f"{', '.join(where)}: {why}" for why, where in notes.items()]
    count = len(rows[0].values)
    if LEAST <= count < FEW and any(row.spearman for row in rows):
        found.append(f"over {count} checkpoints the intervals of agreements mean little")
    if several:
        found.append("each run is measured on its own images; --data takes the same for all")
    return found


def _show(paths: list[str], networks: list[str], rows: list[Row], notes: list[str]) -> None:
    console = LiteralConsole(width_of_file=200)
    for number, (path, network) in enumerate(zip(paths, networks, strict=True), 1):
        console.print(f"{number}  {path} ({network})", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("metric", min_width=max(len(row.name) for row in rows))
    table.add_column("best")
    for number in range(1, len(paths) + 1):
        table.add_column(str(number), justify="right")
    agrees = any(row.spearman or row.kendall or row.linear for row in rows)
    for name in ("order", *(AGREEMENTS if agrees else ())):
        table.add_column(name)
    for row in rows:
        order = " ".join(str(number + 1) for number in row.order)
        values = (f"{each.value:.4g}" if each.defined else "-" for each in row.values)
        found = map(_interval, (row.spearman, row.kendall, row.linear) if agrees else ())
        table.add_row(row.name, row.best or "", *values, order, *found)
    console.print(table)
    for note in notes:
        console.print(f"note: {note}", soft_wrap=not console.is_terminal)


def _interval(found: Interval | None) -> str:
    return "" if found is None else f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _as_json(
    paths: list[str], networks: list[str], rows: list[Row], notes: list[str]
) -> dict[str, Any]:
    def agreement(found: Interval | None) -> dict[str, Any] | None:
        return None if found is None else found._asdict()

    metrics = {
        row.name: {
            "best": row.best,
            "values": [each.as_json() for each in row.values],
            "order": [paths[number] for number in row.order],
            "spearman": agreement(row.spearman),
            "kendall": agreement(row.kendall),
            "spearman_linear": agreement(row.linear),
        }
        for row in rows
    }
    return {"checkpoints": paths, "networks": networks, "metrics": metrics, "notes": notes}
