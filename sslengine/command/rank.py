"""Order runs by how they were judged, or measure checkpoints without labels.

    sslengine rank runs/*                              runs, by the scores of evaluation.json
    sslengine rank runs/* --by knn@20 --json
    sslengine rank runs/*/checkpoints                  checkpoints, by metrics without labels
    sslengine rank runs/mine/checkpoints --data ~/birds/val

`sslengine judge` writes evaluation.json; a run without one comes last, and what is no run is passed
over. The runs of a sweep are found in its folder. Scores of different metrics
(accuracy, mAP), or on different images, cannot be compared: a note says so, and `differs_in` of
--json. Of checkpoints a table is printed, with each metric's order. Where the images have classes
it shows how each metric agrees with nearest neighbours, and with a linear probe, over the
checkpoints: Spearman and Kendall are 1 where both have one order.
No metric is right for all methods: docs/label_free.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from sslengine.command import columns, documents
from sslengine.command.arguments import (
    DEVICE,
    IMAGE_COLUMN,
    JSON,
    LABEL_COLUMN,
    NETWORK,
    PLUGINS,
    RUN,
    TRUST_CONFIG,
    VALUES,
    WORKERS,
    Argument,
    build_parser,
)
from sslengine.command.embed import ALL_OF_IT, check_columns
from sslengine.config.compose import overrides, typed
from sslengine.errors import (
    CheckpointError,
    ConfigError,
    MissingCheckpointError,
    UnknownNameError,
    UntrustedError,
    listing,
    nearest,
    readable,
)
from sslengine.progress import progress
from sslengine.registry import load_plugins
from sslengine.report.summary import Summary, differs_in, list_incomparable, rank_of, read, runs_in
from sslengine.screen import say
from sslengine.screen_console import LiteralConsole

if TYPE_CHECKING:
    from sslengine.evaluate.label_free.ranking import Interval, Row
    from sslengine.predictor.checkpoints import Read

ROWS, VIEWS = 25_600, 16
FEW = 6  # checkpoints
AGREEMENTS = ("Spearman [95 %]", "Kendall [95 %]", "Spearman, linear")
ARGUMENTS = (
    replace(RUN, flag="runs", nargs="+",
            help="folders of runs; or their folders `checkpoints`, or single checkpoints"),
    JSON,
    Argument("--by", "linear (the default), knn@20, ...", metavar="SCORE", group="of runs"),
    *(replace(each, group="of checkpoints") for each in (
        Argument("--data", "images, as for `sslengine train`; else the run's own", metavar="DATA"),
        IMAGE_COLUMN,
        LABEL_COLUMN,
        Argument("--rows", "use at most so many images (%(default)s)", int, "N", ROWS, least=2),
        Argument("--views", "augmented views of an image, for LiDAR ... (%(default)s; 0: none)",
                 int, "N", VIEWS, least=0),
        NETWORK,
        DEVICE,
        WORKERS,
        replace(PLUGINS, help="a module that registers metrics"),
        VALUES,
        TRUST_CONFIG,
    )),
)  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    return build_parser("rank", __doc__, ARGUMENTS)


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    checkpoints = [_may_be_checkpoints(each) for each in given.runs]
    if any(checkpoints):
        if not all(checkpoints):
            raise ConfigError("expected runs, or checkpoints, and not both.")
        if given.by:
            raise ConfigError("--by orders runs; a table of checkpoints has each metric's order.")
        for each in filter(lambda path: not path.exists(), given.runs):
            raise MissingCheckpointError(f"{each}: there is no checkpoint.")
        return _rank_checkpoints(given)
    return _rank_runs(given)


# ---- runs


def _rank_runs(given: argparse.Namespace) -> int:
    by = given.by or "linear"
    folders, notes = runs_in(given.runs)
    found = _ordered([read(each) for each in folders], by)
    for note in notes:
        say(note, sys.stderr)
    if given.json:
        documents.show(_rows(found, by))
    else:
        print(readable("\n".join(_lines(found, by)), but="\n"))
    return 0


def _rows(found: Sequence[Summary], by: str) -> list[dict[str, Any]]:
    different = differs_in(_judged(found, by))
    return [
        {"run": str(each.folder), by: each.scores.get(by), "metric": each.metric,
         "images": each.images, "differs_in": different}
        for each in found
    ]  # fmt: skip


def _lines(found: Sequence[Summary], by: str) -> Iterator[str]:
    judged = _judged(found, by)
    for each in judged:
        yield f"{each.scores[by]:10.1f}  {each.metric:8}  {each.folder}"
    yield from (f"not judged  {each.folder}" for each in found if by not in each.scores)
    yield from (f"  note  {each}" for each in list_incomparable(judged))


def _judged(found: Sequence[Summary], by: str) -> list[Summary]:
    return [each for each in found if by in each.scores]


def _may_be_checkpoints(path: Path) -> bool:
    return path.name == "checkpoints" or path.suffix in (".torch", ".shards")


def _ordered(found: Sequence[Summary], by: str) -> list[Summary]:
    known = dict.fromkeys(name for each in found for name in each.scores)
    if known and by not in known:
        raise UnknownNameError(
            f"--by: no run has {by!r}. {nearest(by, known)} There is {listing(known)}."
        )
    # Those that were not judged come after a score that is no number.
    return sorted(
        found, key=lambda each: (by not in each.scores, -rank_of(each.scores.get(by, math.nan)))
    )


# ---- checkpoints


def _rank_checkpoints(given: argparse.Namespace) -> int:
    """Print label-free metrics of each, and how far they agree with labels."""
    from sslengine.evaluate.label_free.metric import measure
    from sslengine.evaluate.label_free.ranking import probe_of, ranked, score_of

    load_plugins(given.plugins, "--plugin")
    by_run = _group_by_run(given.runs)
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
        documents.show(_describe(paths, networks, rows, notes))
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
    from sslengine.predictor import Predictor
    from sslengine.predictor.checkpoints import read_checkpoints

    workers = given.workers
    values = {} if workers is None else {"DATA.NUM_DATALOADER_WORKERS": workers}
    predictor = Predictor(
        run, nearest=0, device=given.device, network=given.network,
        overrides=[*overrides({**values, **_images(run, given)}), *typed(given.values)],
        trust_config=given.trust_config,
    )  # fmt: skip
    yield from read_checkpoints(predictor, checkpoints, given.rows, given.views)


def _images(run: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of --data, or none: the run's own images."""
    from sslengine.command.data import look

    asked = columns.split_keys(given.image_column, given.label_column)
    if given.data is None:
        if asked:
            raise ConfigError(
                "--image-column and --label-column are of the images that --data names: say "
                "--data, for a run's own images too."
            )
        return {}
    said = columns.run_keys(run, given.data, {**columns.typed_keys(given.values), **asked})
    found = look(given.data, said.get)
    check_columns(found, asked, said)
    return {**ALL_OF_IT, **found.keys_over(labels=found.has_classes)}


def _group_by_run(given: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the checkpoints of each run, oldest first, or in the order given."""
    from sslengine.checkpoint import files

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


def _describe(
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
