"""Measure checkpoints by metrics without labels: which of a run, or of several, is good?

    sslengine rank runs/*/checkpoints
    sslengine rank runs/mine/checkpoints --data ~/birds/val

A table is printed, with each metric's order. Where the images have classes it shows how each metric
agrees with nearest neighbours, and with a linear probe, over the checkpoints: Spearman and Kendall
are 1 where both have one order. No metric is right for all methods: docs/label_free.md. Runs that
were judged are put in order by `sslengine report RUN RUN`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from sslengine.command import arguments as args
from sslengine.command.arguments import Argument
from sslengine.command.data import ALL_OF_IT, look_for_run, split_keys
from sslengine.config.compose import overrides, typed
from sslengine.errors import (
    CheckpointError,
    ConfigError,
    MissingCheckpointError,
    UntrustedError,
    readable,
)
from sslengine.progress import progress
from sslengine.registry import load_plugins
from sslengine.screen_console import LiteralConsole

if TYPE_CHECKING:
    from sslengine.evaluate.label_free.ranking import Interval, RankedRow
    from sslengine.predictor.checkpoints import Read

ROWS, VIEWS = 25_600, 16
FEW = 6  # checkpoints
AGREEMENTS = ("Spearman [95 %]", "Kendall [95 %]", "Spearman, linear")
ARGUMENTS = (
    replace(args.RUN, flag="runs", nargs="+", metavar="CHECKPOINTS",
            help="folders `checkpoints` of runs, or single checkpoints"),
    args.JSON,
    Argument("--data", "images, as for `sslengine train`; else the run's own", metavar="DATA"),
    args.IMAGE_COLUMN,
    args.LABEL_COLUMN,
    Argument("--rows", "use at most so many images (%(default)s)", int, "N", ROWS, least=2),
    Argument("--views", "augmented views of an image, for LiDAR ... (%(default)s; 0: none)",
             int, "N", VIEWS, least=0),
    args.NETWORK,
    args.DEVICE,
    args.WORKERS,
    replace(args.PLUGINS, help="a module that registers metrics"),
    args.VALUES,
    args.TRUST_CONFIG,
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Print label-free metrics of each checkpoint, and how far they agree with labels."""
    given = args.make_parser(__name__).parse_args(arguments)
    for each in filter(lambda path: not path.exists(), given.runs):
        raise MissingCheckpointError(f"{each}: there is no checkpoint.")
    from sslengine.evaluate.label_free.metric import measure
    from sslengine.evaluate.label_free.ranking import probe_of, ranked, score_of

    load_plugins(given.plugins, "--plugin")
    by_run = _group_by_run(given.runs)
    paths, networks, measured = list[str](), list[str](), list[Any]()
    count = sum(map(len, by_run.values()))
    with progress("ranking", count, "checkpoints", then="the table") as step:
        for each in _read_all(by_run, given):
            paths.append(str(each.checkpoint))
            networks.append(each.network)
            with progress(f"metrics of {each.checkpoint.name}"):
                features, labels = each.inputs.features, each.labels
                of_labels = score_of(features, labels), probe_of(features, labels)
                measured.append((measure(each.inputs), *of_labels))
            step(1)
    if not measured:
        raise CheckpointError("none of the checkpoints can be read.")
    rows = ranked(*map(list, zip(*measured)))
    notes = _list_notes(rows, several=len(by_run) > 1 and given.data is None)
    if given.json:
        args.print_document(_describe(paths, networks, rows, notes))
    else:
        _show(paths, networks, rows, notes)
    return 0


def _read_all(by_run: dict[Path, list[Path]], given: argparse.Namespace) -> Iterator[Read]:
    from sslengine.predictor import Predictor
    from sslengine.predictor.checkpoints import read_checkpoints

    workers = {} if given.workers is None else {"DATA.NUM_DATALOADER_WORKERS": given.workers}
    for run, checkpoints in by_run.items():
        try:
            predictor = Predictor(
                run, nearest=0, device=given.device, network=given.network,
                overrides=[*overrides({**workers, **_images(run, given)}), *typed(given.values)],
                trust_config=given.trust_config,
            )  # fmt: skip
            yield from read_checkpoints(predictor, checkpoints, given.rows, given.views)
        except UntrustedError as error:
            if len(by_run) == 1:
                raise
            print(readable(f"left out: {error}"), file=sys.stderr)


def _images(run: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of --data, or none: the run's own images."""
    asked = split_keys(given.image_column, given.label_column)
    if given.data is None:
        if asked:
            raise ConfigError(
                "--image-column and --label-column are of the images that --data names: say "
                "--data, for a run's own images too."
            )
        return {}
    found = look_for_run(run, given.data, asked, given.values)
    return {**ALL_OF_IT, **found.keys_over(labels=found.has_classes)}


def _group_by_run(given: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the checkpoints of each run, oldest first, or in the order given."""
    from sslengine.checkpoint import files

    by_run: dict[Path, list[Path]] = {}
    for path in given:
        folder = path.suffix != ".shards" and path.is_dir()
        found = files.list_checkpoints(path)[::-1] if folder else [path]
        if not found:
            raise MissingCheckpointError(f"{path}: there is no checkpoint.")
        run = found[0].absolute().parent.parent
        if found[0].absolute().parent.name != "checkpoints" or not (run / "config.yaml").is_file():
            raise ConfigError(
                f"{path}: expected the folder `checkpoints` of a run, or checkpoints in it: they "
                f"are read with the config.yaml of their run."
            )
        by_run.setdefault(run, []).extend(found)
    return by_run


def _list_notes(rows: Sequence[RankedRow], several: bool) -> list[str]:
    """Say why values are missing, once for each reason."""
    from sslengine.evaluate.label_free.ranking import LEAST

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


def _show(paths: list[str], networks: list[str], rows: list[RankedRow], notes: list[str]) -> None:
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


def _describe(
    paths: list[str], networks: list[str], rows: list[RankedRow], notes: list[str]
) -> dict[str, Any]:
    metrics = {}
    for row in rows:
        agreements = {"spearman": row.spearman, "kendall": row.kendall}
        agreements["spearman_linear"] = row.linear
        metrics[row.name] = {
            "best": row.best,
            "values": [each.as_json() for each in row.values],
            "order": [paths[number] for number in row.order],
            **{name: each and each._asdict() for name, each in agreements.items()},
        }
    return {"checkpoints": paths, "networks": networks, "metrics": metrics, "notes": notes}
