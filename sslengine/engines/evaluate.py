"""`evaluate`: how good are a trunk's features, frozen?

kNN and a linear probe on the features of the trained trunk, beside the same trunk with
its random initial weights and beside raw pixels: what training has added. Labels come
from DATA.TRAIN and DATA.TEST; the weights from MODEL.WEIGHTS_INIT, or from the newest
checkpoint of the run's own folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from sslengine.checkpoint.atomic import write_whole
from sslengine.checkpoint.rng import seed_all
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.distributed.collectives import barrier
from sslengine.distributed.ranks import is_primary
from sslengine.engines.expected import check_results
from sslengine.engines.features import (
    Features,
    extract,
    gather_features,
    join,
    layers_of,
    ordered_feed,
    pixels,
    trained_weights,
)
from sslengine.engines.run import Run
from sslengine.errors import CheckpointError, ConfigError
from sslengine.evaluation.knn import knn_accuracy
from sslengine.evaluation.linear import linear_probe
from sslengine.evaluation.options import LinearProbeOptions, NearestNeighborOptions
from sslengine.models.options import ModelOptions
from sslengine.models.weights import init_from_file
from sslengine.registry import register_engine
from sslengine.task.build import build_base_model, build_run_precision


@dataclass(frozen=True)
class Score:
    """Percentages of the test images whose class is found."""

    features: str
    layer: str
    knn: dict[int, float]  # by the number of neighbours
    linear: float


@register_engine("evaluate")
def evaluate(run: Run) -> None:
    weights = _weights(run)
    model_options = read(run.config, ModelOptions)
    model_options.WEIGHTS_INIT.PARAMS_FILE = str(weights)
    seed_all(read(run.config, RunOptions).SEED_VALUE)
    model = build_base_model(run.config, run.device)
    judge = _Judge(run)
    untrained = judge("untrained", layers_of(model))
    network = init_from_file(model, model_options).network
    scores = [*judge("trained", layers_of(model)), *untrained, *judge("raw pixels", pixels)]
    judge.close()
    if is_primary():
        run.describe()
        report = run.run_dir / "evaluation.json"
        write_whole(report, _as_json(weights, network, scores))
        show_scores(run.console, scores)
        _show_training(run.console, weights, network)
        run.console.print(f"  report      {report}")
    barrier()
    check_results(run, {"test": _as_results(scores)})


def _weights(run: Run) -> Path:
    path = trained_weights(run.config, run.run_dir)
    if not path.exists():
        raise CheckpointError(
            f"there are no trained weights at {path}. Train first, with the same config=..., or "
            f"name a file: config.MODEL.WEIGHTS_INIT.PARAMS_FILE=..."
        )
    return path


class _Judge:
    """Reads both splits once for each kind of features, and scores them on rank 0."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.data = read(run.config, DataOptions)
        for split in ("TRAIN", "TEST"):
            if getattr(self.data, split).LABEL_TYPE != "standard":
                raise ConfigError(
                    f"config.DATA.{split}.LABEL_SOURCES: judging features needs labels."
                )
        self.feeds = {s: ordered_feed(run.config, s, run.device) for s in ("TRAIN", "TEST")}
        self.precision = build_run_precision(run.config, run.device)
        self.neighbours = read(run.config, NearestNeighborOptions)
        self.probe = read(run.config, LinearProbeOptions)

    def __call__(self, name: str, compute: Callable[[Any], dict[str, Tensor]]) -> list[Score]:
        if is_primary():  # it may take minutes
            images = " and ".join(str(feed.num_samples) for feed in self.feeds.values())
            self.run.console.print(f"judging {images} images: {name}")
        train, test = (self._features(split, compute) for split in ("TRAIN", "TEST"))
        if not is_primary():
            return []
        return [self._score(name, layer, train, test) for layer in train.layers]

    def close(self) -> None:
        for feed in self.feeds.values():
            feed.close()

    def _features(self, split: str, compute: Callable[[Any], dict[str, Tensor]]) -> Features:
        batches = extract(compute, self.feeds[split], getattr(self.data, split), self.precision)
        return gather_features(join(list(batches)), self.run.device)

    def _score(self, name: str, layer: str, train: Features, test: Features) -> Score:
        sets = (train.layers[layer], train.targets, test.layers[layer], test.targets)
        options = self.neighbours
        knn = {
            k: knn_accuracy(*sets, k=k, sigma=options.SIGMA, metric=options.metric)
            for k in options.neighbours
        }
        probe = linear_probe(*sets, self.probe)
        return Score(name, layer, knn, probe.test_accuracy)


def _as_results(scores: list[Score]) -> dict[str, Any]:
    """The names that config.EXPECTED_RESULTS uses."""
    results: dict[str, Any] = {}
    for score in scores:
        figures = {f"knn_{k}": value for k, value in score.knn.items()} | {"linear": score.linear}
        results.setdefault(score.features, {})[score.layer] = figures
    return results


def _as_json(weights: Path, network: str, scores: list[Score]) -> bytes:
    report = {
        "weights": str(weights),
        "network": network,
        "scores": [vars(score) for score in scores],
    }
    return (json.dumps(report, indent=2) + "\n").encode()


def show_scores(console: Console, scores: list[Score]) -> None:
    """A table: one line per kind of features and layer."""
    neighbours = list(scores[0].knn)
    table = Table(box=None, pad_edge=False)
    table.add_column("features")
    table.add_column("layer")
    for k in neighbours:
        table.add_column(f"kNN (k={k})", justify="right")
    table.add_column("linear", justify="right")
    for score in scores:
        accuracies = [*(score.knn[k] for k in neighbours), score.linear]
        table.add_row(score.features, score.layer, *(f"{value:.1f} %" for value in accuracies))
    console.print(table)


def _show_training(console: Console, weights: Path, network: str) -> None:
    """Where the weights come from and how their loss fell, if a run's folder is around them."""
    console.print(f"  checkpoint  {weights}")
    console.print(f"  network     {network}")
    metrics = weights.parent.parent / "metrics.jsonl"
    if not metrics.exists():
        return
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    if losses:
        console.print(f"  metrics     {metrics}")
        console.print(f"  loss        {losses[0]:.3f} at the first step, {losses[-1]:.3f} at last")
