"""`evaluate`: score a trunk's frozen features by kNN and a linear probe.

Features are computed once, and kept on the disk: see config.EVALUATE.

For comparison it also scores the same trunk with its random initial weights, and raw pixels.
Labels come from DATA.TRAIN and DATA.TEST; the weights from MODEL.WEIGHTS_INIT, or from the
newest checkpoint in the run's folder.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from sslengine.atomic import write_whole
from sslengine.checkpoint.rng import seed_all
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import is_primary
from sslengine.engines.expected import check_results_here
from sslengine.engines.finetuned import as_protocols, finetuned
from sslengine.engines.features import Features, layers_of, pixels, trained_weights
from sslengine.engines.label_free import label_free, show_label_free
from sslengine.engines.protocols import run_protocols, show_protocols
from sslengine.engines.run import Run
from sslengine.engines.stored import Network, StoredSplit, of_weights, store_split
from sslengine.errors import CheckpointError, ConfigError, DataError
from sslengine.evaluation.knn import knn_curve, knn_scores
from sslengine.evaluation.linear import linear_probe
from sslengine.evaluation.linear_many import linear_probe_of_many, mean_average_precision
from sslengine.evaluation.options import (
    EvaluateOptions,
    LinearProbeOptions,
    Metric,
    NearestNeighborOptions,
    SvmOptions,
)
from sslengine.evaluation.store import Store
from sslengine.models.options import ModelOptions
from sslengine.models.weights import Loaded, init_weights, other_classes
from sslengine.monitor import history
from sslengine.registry import register_engine
from sslengine.task.build import build_base_model

log = logging.getLogger("sslengine")


@dataclass
class Score:
    """Accuracies on the test images, in percent."""

    features: str
    layer: str
    knn: dict[int, float]  # by the number of neighbours
    linear: float | None = None  # None: not computed yet, or too few labels
    knn_top5: dict[int, float] = field(default_factory=dict)
    protocols: dict[str, Any] = field(default_factory=dict)
    label_free: dict[str, Any] = field(default_factory=dict)  # by metric


@dataclass(frozen=True)
class Judged:
    """The features of both splits, of one kind."""

    name: str
    train: Features
    test: Features

    @property
    def several(self) -> bool:
        """Are labels rows of indicators?"""
        return self.train.targets.ndim > 1


@register_engine("evaluate")
def evaluate(run: Run) -> None:
    """All ranks compute features; rank 0 computes scores, and the other ranks do not wait."""
    weights = _weights(run)
    model_options = read(run.config, ModelOptions)
    model_options.WEIGHTS_INIT.PARAMS_FILE = str(weights or "")
    seed_all(read(run.config, RunOptions).SEED_VALUE)
    untrained = build_base_model(run.config, run.device)
    trained = deepcopy(untrained)
    loaded = init_weights(trained, model_options)
    judge = _Judge(run)
    sets = judge.features(
        [
            Network("trained", layers_of(trained), of_weights(trained, model_options)),
            Network("untrained", layers_of(untrained), of_weights(untrained, model_options)),
            Network("raw pixels", pixels, {}),
        ]
    )
    judge.note(other_classes(loaded.classes, [judge.class_names]))
    if is_primary():
        run.describe()
        report = _Report(run.run_dir / "evaluation.json", loaded.source, loaded.network, judge)
        scores = judge.scores(sets, report)
        show_scores(run.console, scores, judge.metric)
        show_label_free(
            run.console, {f"{each.features}, {each.layer}": each.label_free for each in scores}
        )
        show_protocols(
            run.console, {f"{each.features}, {each.layer}": each.protocols for each in scores}
        )
        show_protocols(run.console, as_protocols(finetuned(run.run_dir)))
        for note in judge.notes:
            run.console.print(f"  note        {note}")
        _show_training(run.console, weights, loaded)
        run.console.print(f"  features    {judge.folder}")
        run.console.print(f"  report      {report.path}")
        check_results_here(run, {"test": _as_results(scores)})


def _weights(run: Run) -> Path | None:
    """The weights file; None: the pretrained weights that a library has for the trunk."""
    path = trained_weights(run.config, run.run_dir)
    if not path.exists() and read(run.config, ModelOptions).starts_from_library():
        return None
    if not path.exists():
        raise CheckpointError(
            f"there are no trained weights at {path}. Train first with the same config=..., or "
            f"name a file: config.MODEL.WEIGHTS_INIT.PARAMS_FILE=..."
        )
    return path


class _Judge:
    """Stores the features of both splits; rank 0 scores them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        data = read(run.config, DataOptions)
        for split in ("TRAIN", "TEST"):
            if getattr(data, split).LABEL_TYPE != "standard":
                raise ConfigError(
                    f"config.DATA.{split}.LABEL_SOURCES: evaluating features needs labels."
                )
        self.options = read(run.config, EvaluateOptions)
        self.folder = Path(self.options.FEATURES or run.run_dir / "features")
        self.neighbours = read(run.config, NearestNeighborOptions)
        self.probe = read(run.config, LinearProbeOptions)
        self.machines = read(run.config, SvmOptions)
        self.notes: list[str] = []
        self.class_names: list[str] = []
        self.metric = ""

    def features(self, networks: Sequence[Network]) -> list[Judged]:
        """Of both splits, each image read once, and only where no store has them. Collective."""
        classes: list[Classes] = []
        found: dict[str, StoredSplit] = {}
        for split in ("TRAIN", "TEST"):
            found[split] = store_split(
                self.run, split, networks, self.folder, classes, self.options.DTYPE
            )
            classes = found[split].classes
        self.class_names = list(classes[0].names)
        self.metric = "mAP" if classes[0].width else "accuracy"
        if not is_primary():
            return []
        return [
            Judged(each.name, *(self._labelled(*of) for of in _of(found, each)))
            for each in networks
        ]

    def scores(self, sets: Sequence[Judged], report: _Report) -> list[Score]:
        """kNN first: it needs less time and fewer labels than a probe."""
        parts = [(each, layer) for each in sets for layer in each.train.layers]
        scores = [self._neighbours(each, layer) for each, layer in parts]
        report.write(scores)
        for score, (each, layer) in zip(scores, parts, strict=True):
            score.linear = self._linear(each, layer)
            report.write(scores)
        for score, (each, layer) in zip(scores, parts, strict=True):
            score.label_free = label_free(each.train.layers[layer], self.options.LABEL_FREE)
            report.write(scores)
        if self.options.PROTOCOLS:
            for score, (each, layer) in zip(scores, parts, strict=True):
                score.protocols = run_protocols(
                    _sets(each, layer), self.options.PROTOCOLS, self.machines
                )
                report.write(scores)
        return scores

    def note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def _labelled(self, store: Store, split: str) -> Features:
        """The features without those of images that have no class."""
        targets = store.targets
        keep = (targets >= 0).any(dim=1) if targets.ndim > 1 else targets >= 0
        if not keep.all():
            self.note(
                f"{int((~keep).sum())} of {len(keep)} images of {split} have no label: left out"
            )
        layers = {name: store.layer(name).tensor()[keep] for name in store.layers}
        return Features(layers, targets[keep], store.indices[keep])

    def _neighbours(self, each: Judged, layer: str) -> Score:
        options, count = self.neighbours, len(each.train.targets)
        for k in options.neighbours:
            if k > count:
                self.note(
                    f"kNN with k={k}: there are only {count} training images, and all of them vote"
                )
        used = {k: min(k, count) for k in options.neighbours}
        how: dict[str, Any] = {"sigma": options.SIGMA, "metric": options.metric}
        sets = _sets(each, layer)
        if each.several:
            found = {k: _knn_of_many(*sets, k=fewer, **how) for k, fewer in used.items()}
            return Score(each.name, layer, found)
        curve = knn_curve(*sets, [*used.values()], **how, top=(1, 5))
        top1, top5 = ({k: curve[fewer][n] for k, fewer in used.items()} for n in (0, 1))
        return Score(each.name, layer, top1, knn_top5=top5)

    def _linear(self, each: Judged, layer: str) -> float | None:
        try:
            probe = linear_probe_of_many if each.several else linear_probe
            found = probe(*_sets(each, layer), self.probe)
        except DataError as error:  # kNN scores are still reported
            log.warning("%s", error)
            self.note(str(error))
            return None
        self.note(f"linear probe: {found.note}" if found.note else "")
        return found.test_accuracy


def _of(found: Mapping[str, StoredSplit], network: Network) -> list[tuple[Store, str]]:
    return [(stored.stores[network.name], split) for split, stored in found.items()]


def _knn_of_many(
    train: Tensor,
    rows: Tensor,
    test: Tensor,
    wanted: Tensor,
    *,
    k: int,
    sigma: float,
    metric: Metric,
) -> float:
    return mean_average_precision(knn_scores(train, rows, test, k, sigma, metric), wanted)


def _sets(each: Judged, layer: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    train, test = each.train, each.test
    return train.layers[layer], train.targets, test.layers[layer], test.targets


@dataclass
class _Report:
    """evaluation.json, which is complete after every write."""

    path: Path
    weights: str
    network: str
    judge: _Judge

    def write(self, scores: list[Score]) -> None:
        options = self.judge.neighbours
        content = {
            "weights": self.weights,
            "network": self.network,
            "metric": self.judge.metric,
            "knn": {"metric": options.metric, "sigma": options.SIGMA},
            # Class number -> name; empty if labels are numbers.
            "classes": self.judge.class_names,
            "notes": self.judge.notes,
            "scores": [vars(score) for score in scores],
            "finetuned": finetuned(self.path.parent),
        }
        write_whole(self.path, (json.dumps(content, indent=2) + "\n").encode())


def _as_results(scores: list[Score]) -> dict[str, Any]:
    """The names that config.EXPECTED_RESULTS uses."""
    results: dict[str, Any] = {}
    for score in scores:
        metrics = {f"knn_{k}": value for k, value in score.knn.items()}
        if score.linear is not None:
            metrics["linear"] = score.linear
        results.setdefault(score.features, {})[score.layer] = metrics
    return results


def show_scores(console: Console, scores: list[Score], metric: str = "accuracy") -> None:
    """A table: one line per kind of features and layer."""
    neighbours = list(scores[0].knn)
    suffix = "" if metric == "accuracy" else f" {metric}"
    table = Table(box=None, pad_edge=False)
    table.add_column("features")
    table.add_column("layer")
    for k in neighbours:
        table.add_column(f"kNN{suffix} (k={k})", justify="right")
    table.add_column(f"linear{suffix}", justify="right")
    for score in scores:
        accuracies = [*(score.knn[k] for k in neighbours), score.linear]
        cells = ("-" if value is None else f"{value:.1f} %" for value in accuracies)
        table.add_row(score.features, score.layer, *cells)
    console.print(table)


def _show_training(console: Console, weights: Path | None, loaded: Loaded) -> None:
    """Print the weights' file and, if it is in a run's folder, how its loss changed."""
    console.print(f"  checkpoint  {loaded.source}")
    console.print(f"  network     {loaded.network}")
    if weights is None or not (metrics := weights.parent.parent / "metrics.jsonl").exists():
        return
    losses = [step["loss"] for step in history.read(metrics.parent)]
    if losses:
        console.print(f"  metrics     {metrics}")
        console.print(f"  loss        {losses[0]:.3f} at first, {losses[-1]:.3f} at the last step")
