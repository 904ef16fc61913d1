"""`sslengine judge --features`: scores of features that are in files, without a run or images."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sslengine.atomic import write_json
from sslengine.command.arguments import print_document
from sslengine.config.compose import typed
from sslengine.config.resolve import sections_of
from sslengine.engines.report import show_all
from sslengine.engines.scoring import Asked, Sets, chance
from sslengine.errors import ConfigError, DataError
from sslengine.evaluate.features import Chosen, Rows, note_leak
from sslengine.evaluate.given import Given, numbered, pairs_in, read_given
from sslengine.evaluate.linear import hold_out
from sslengine.evaluate.options import (
    ON_FEATURES,
    SUITES,
    EvaluateOptions,
    LinearProbeOptions,
    NearestNeighborOptions,
    SvmOptions,
    published,
)
from sslengine.monitor.console import Screen

SECTIONS = (EvaluateOptions, NearestNeighborOptions, LinearProbeOptions, SvmOptions)
HELD_OUT = 0.2


def judge_features(given: argparse.Namespace, neighbours: Sequence[int]) -> int:
    first = f"NEAREST_NEIGHBOR.TOPK=[{','.join(map(str, neighbours))}]"
    suite = [f"EVALUATE.PROTOCOLS=[{','.join(SUITES[given.suite])}]"]
    evaluate, nearest, probe, machines = sections_of(
        [first, *suite, *typed(given.values)], SECTIONS
    )
    if probe.GROUP_COLUMN:
        raise ConfigError(
            f"LINEAR_PROBE.GROUP_COLUMN={probe.GROUP_COLUMN}: expected none with --features: files "
            f"of features have no groups. It belongs to a run, whose images have columns."
        )
    nearest, probe = published(evaluate.PUBLISHED, nearest, probe)
    notes: list[str] = []
    _note(_name_left_out(evaluate.PROTOCOLS, given.suite), notes)
    sets = [_labelled(*each, notes) for each in _splits(given, notes)]
    asked = Asked(evaluate, nearest, probe, machines, _device(given.device))
    for each in sets:
        if each.test is not None:
            _note(note_leak(each.train, each.test, "rows"), notes)
    scores = asked.score_labels(sets, lambda text: _note(text, notes), lambda _: None)
    asked.rest(scores, sets, lambda _: None)
    labels, wanted = sets[0].labels, sets[0].wanted
    by_chance = None if labels is None else chance(labels, labels if wanted is None else wanted)
    metric = "mAP" if labels is not None and labels.ndim > 1 else "accuracy"
    content = asked.document(scores, metric, by_chance, notes)
    if given.json:
        print_document(content)
    else:
        show_all(Screen(width_of_file=200), scores, metric, by_chance, notes)
    if given.out is not None:
        write_json(given.out, content)
    return 0


def _name_left_out(protocols: Sequence[str], suite: str) -> str:
    parts = [name for name in protocols if name not in ON_FEATURES]
    parts += ["fine-tuning"] * (suite == "full")
    return f"left out, as it needs the images of a run: {', '.join(parts)}" if parts else ""


def _splits(
    given: argparse.Namespace, notes: list[str]
) -> Iterator[tuple[str, Given, Given | None, Tensor | None]]:
    """A name, training and test features, or numbers of the rows of one file that are held out."""
    paths, labels = given.features, given.labels or [None] * len(given.features)
    if len(paths) != len(labels):
        raise ConfigError(
            f"--labels: expected {len(paths)} files, as --features has; got {len(labels)}."
        )
    if len(paths) == 2:
        train, test = (read_given(*each) for each in zip(paths, labels))
        yield "given", train, test, None
        return
    (path,) = paths
    both = list(pairs_in(path)) if path.is_dir() else []
    if both:
        yield from ((*each, None) for each in both)
        return
    whole = read_given(path, labels[0])
    yield "given", whole, *_test_rows(path, whole, notes)


def _test_rows(path: Path, whole: Given, notes: list[str]) -> tuple[Given | None, Tensor | None]:
    """Hold out a fifth of the rows of one file; none if its labels do not allow it."""
    if whole.labels is None:
        return None, None
    numbers, _ = numbered(whole.labels, whole.labels)
    note = ""
    if numbers.ndim > 1:
        count = round(HELD_OUT * len(numbers))
        unused = np.random.default_rng(0).permutation(len(numbers))[:count]
    else:
        try:
            _, unused, note = hold_out(numbers.numpy(), HELD_OUT)
        except DataError as error:
            notes.append(f"{path}: {error} It is judged without labels.")
            return None, None
    notes.append(note or f"{path}: {len(unused)} of {len(numbers)} rows are held out as test rows")
    return whole, torch.from_numpy(unused).sort().values


def _labelled(
    name: str, train: Given, test: Given | None, held_out: Tensor | None, notes: list[str]
) -> Sets:
    """Choose the rows that have labels; without test labels kNN is among the training rows."""
    about: dict[str, Any] = {"source": train.source, "layer": train.layer}
    if train.labels is None:
        _note("there are no training labels: only metrics that need none are computed", notes)
        return Sets(name, train.layer, train.rows, about=about)
    of_test = None if test is None else test.labels
    labels, wanted = numbered(train.labels, of_test or train.labels)
    used = torch.ones(len(labels), dtype=torch.bool)
    if held_out is not None:
        used[held_out] = False
        wanted = wanted[~used]
    rows, labels = _choose(train.rows, labels, used)
    known = _known(labels, "training", notes)
    if not known.any():
        return Sets(name, train.layer, train.rows, about=about)
    rows, labels = _choose(rows, labels, known)
    if test is not None and of_test is not None:
        tested = test.rows if held_out is None else Chosen(test.rows, held_out)
        known = _known(wanted, "test", notes)
        if known.any():
            tested, wanted = _choose(tested, wanted, known)
            images = {"train": len(labels), "test": len(wanted)}
            about |= {"test source": test.source, "images": images}
            return Sets(name, train.layer, rows, labels, tested, wanted, about)
    return Sets(name, train.layer, rows, labels, about=about)


def _known(labels: Tensor, split: str, notes: list[str]) -> Tensor:
    known = (labels >= 0).any(dim=1) if labels.ndim > 1 else labels >= 0
    if not known.any():
        _note(f"no {split} row has a label", notes)
    elif not known.all():
        _note(f"{int((~known).sum())} {split} rows have no label: left out", notes)
    return known


def _choose(rows: Rows, labels: Tensor, chosen: Tensor) -> tuple[Rows, Tensor]:
    if chosen.all():
        return rows, labels
    return Chosen(rows, chosen.nonzero().flatten()), labels[chosen]


def _note(text: str, notes: list[str]) -> None:
    if text and text not in notes:
        notes.append(text)


def _device(name: str) -> torch.device:
    """Probes are computed in float64, which Apple's GPUs lack."""
    there = torch.cuda.is_available()
    if name == "gpu" and not there:
        raise ConfigError("--device gpu: torch sees no GPU.")
    return torch.device("cuda" if there and name in ("auto", "gpu") else "cpu")
