"""`evaluate`: score a trunk's frozen features by kNN and a linear probe.

Features are computed once, and kept on the disk: see config.EVALUATE.

For comparison it also scores the same trunk with its random initial weights, and raw pixels.
Labels come from DATA.TRAIN and DATA.TEST; the weights from MODEL.WEIGHTS_INIT, or from the
newest checkpoint in the run's folder. Without labels, metrics that need none are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslengine.atomic import write_json
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.judged_view import described
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import is_primary
from sslengine.engines.expected import check_results_here
from sslengine.engines.features import required_weights
from sslengine.engines.few_label_lists import write_lists
from sslengine.engines.groups import group_column, groups_of
from sslengine.engines.judged_images import Judged
from sslengine.engines.judged_networks import PIXELS, UNTRAINED, networks_of
from sslengine.engines.on_images import run_on_images
from sslengine.engines.protocols import show_protocols
from sslengine.engines.run import Run
from sslengine.engines.score_table import show_all
from sslengine.engines.scoring import Asked, Score, Sets, averaged, chance
from sslengine.engines.stored import Network, StoredSplit, store_split
from sslengine.engines.trained_results import as_protocols, results_of
from sslengine.evaluation.features import Chosen, Rows
from sslengine.evaluation.leak import note_of_leak
from sslengine.evaluation.options import (
    EvaluateOptions,
    LinearProbeOptions,
    NearestNeighborOptions,
    SvmOptions,
    published,
)
from sslengine.evaluation.store import Store
from sslengine.models.weights import Loaded, other_classes
from sslengine.monitor import history
from sslengine.precision import for_float64
from sslengine.registry import register_engine

NO_LABELS = "the images have no labels: kNN, linear probe and what else needs them are left out"


@register_engine("evaluate")
def evaluate(run: Run) -> None:
    """All ranks compute features, kNN and the probe; the others do not wait for rank 0's rest."""
    weights = required_weights(run)
    judge = _Judge(run)
    networks, loaded = networks_of(run, str(weights or ""))
    sets = judge.sets(networks)
    judge.note(other_classes(loaded.classes, [judge.class_names]))
    report = _Report(run.run_dir / "evaluation.json", loaded, judge)
    scores = judge.asked.by_labels(sets, judge.note, report.write)
    judged = judge.judged(networks, sets, str(weights or ""))
    run_on_images(judged, scores, report.write)
    if not is_primary():
        return
    run.describe()
    judge.note(_leak(sets))
    if "few_labels" in judge.asked.evaluate.PROTOCOLS:
        write_lists(judge.found["TRAIN"], sets[0], run.run_dir / "few_labels", judge.class_names)
    judge.asked.rest(scores, sets, report.write)
    _show_training(run, weights, loaded)
    run.console.print(f"  features    {judge.folder}")
    run.console.print(f"  report      {report.path}")
    show_protocols(run.console, as_protocols(results_of(run.run_dir)))
    show_all(run.console, joined(scores), judge.metric, judge.chance, judge.notes)
    check_results_here(run, {"test": _as_results(joined(scores))})


def _leak(sets: Sequence[Sets]) -> str:
    pixels = next(each for each in sets if each.features == PIXELS)
    return "" if pixels.test is None else note_of_leak(pixels.train, pixels.test, "images")


class _Judge:
    """Stores the features of both splits, and what they are judged by."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.data = read(run.config, DataOptions)
        options = read(run.config, EvaluateOptions)
        self.folder = Path(options.FEATURES or run.run_dir / "features")
        probe = read(run.config, LinearProbeOptions)
        probe = replace(probe, GROUP_COLUMN=group_column(self.data, probe))
        by = (read(run.config, NearestNeighborOptions), probe)
        machines, device = read(run.config, SvmOptions), for_float64(run.device)
        self.asked = Asked(options, *published(options.PUBLISHED, *by), machines, device)
        self.seed = read(run.config, RunOptions).SEED_VALUE
        self.notes: list[str] = []
        self.class_names: list[str] = []
        self.metric = "accuracy"
        self.chance: float | None = None
        self.found: dict[str, StoredSplit] = {}
        self.groups: Tensor | None = None  # of TRAIN's images

    @property
    def splits(self) -> list[str]:
        tested = bool(self.data.TEST.DATA_SOURCES or self.data.HOLD_OUT.SHARE)
        return ["TRAIN", "TEST"] if tested else ["TRAIN"]

    def labelled(self, split: str) -> bool:
        return bool(getattr(self.data, split).LABEL_TYPE == "standard")

    def sets(self, networks: Sequence[Network]) -> list[Sets]:
        """Each image is read once, and only where no store has its features. Collective."""
        classes: list[Classes] = []
        found = self.found
        if self.labelled("TRAIN"):  # before images are read: an unknown column is an error
            self.groups = groups_of(self.run, self.asked.probe.GROUP_COLUMN)
        for split in self.splits:
            found[split] = store_split(
                self.run,
                split,
                networks,
                self.folder,
                classes,
                self.asked.evaluate.DTYPE,
                then="kNN" if split == self.splits[-1] else "features of test",
            )
            classes = found[split].classes
        if not self.labelled("TRAIN"):
            self.note(NO_LABELS)
        else:
            self.class_names = list(classes[0].names)
            self.metric = "mAP" if classes[0].width else "accuracy"
        return [each for network in networks for each in self._of(network, found)]

    @cached_property
    def images(self) -> dict[str, Any]:
        """What identifies those of each split, for rank 0."""
        splits = self.found.items()
        return {name: each.identified(getattr(self.data, name)) for name, each in splits}

    def judged(self, networks: Sequence[Network], sets: Sequence[Sets], weights: str) -> Judged:
        """For protocols that need further images."""
        asked = self.asked
        return Judged(
            self.run, networks, sets, self.found, self.folder, asked.evaluate, asked.probe, weights
        )

    def _of(self, network: Network, found: Mapping[str, StoredSplit]) -> list[Sets]:
        """A network's layers."""
        view = described([dict(each) for each in self.data.TRAIN.TRANSFORMS])
        halves = {split: self._half(stored.stores[network.name], split)
                  for split, stored in found.items()}  # fmt: skip
        train, test = halves["TRAIN"], halves.get("TEST")
        if self.chance is None and train.labels is not None:
            wanted = None if test is None else test.labels
            self.chance = chance(train.labels, train.labels if wanted is None else wanted)
        images = {split.lower(): len(half.numbers) for split, half in halves.items()}
        about = {"seeds": [self.seed], **network.about, "view": view, "images": images}
        other = test or _Half({}, None, torch.empty(0))
        groups = None if self.groups is None else self.groups[train.numbers]
        return [
            Sets(network.name, layer, rows, train.labels, other.layers.get(layer), other.labels,
                 {"layer": layer, **about}, train.numbers, other.numbers, groups)
            for layer, rows in train.layers.items()
        ]  # fmt: skip

    def _half(self, store: Store, split: str) -> _Half:
        """Without images that have no class."""
        layers: dict[str, Rows] = {name: store.layer(name) for name in store.layers}
        if not self.labelled(split):
            return _Half(layers, None, store.indices)
        targets = store.targets
        keep = (targets >= 0).any(dim=1) if targets.ndim > 1 else targets >= 0
        if not keep.any():
            self.note(f"no image of {split} has a label: what needs them is left out")
            return _Half(layers, None, store.indices)
        if not keep.all():
            self.note(
                f"{int((~keep).sum())} of {len(keep)} images of {split} have no label: left out"
            )
            numbers = keep.nonzero().flatten()
            layers = {name: Chosen(rows, numbers) for name, rows in layers.items()}
        return _Half(layers, targets[keep], store.indices[keep])

    def note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True)
class _Half:
    """Of one split."""

    layers: Mapping[str, Rows]
    labels: Tensor | None
    numbers: Tensor  # of the images


def joined(scores: Sequence[Score]) -> list[Score]:
    """The untrained networks as one."""
    by: dict[tuple[str, str], list[Score]] = {}
    for each in scores:
        kind = UNTRAINED if each.features.startswith(UNTRAINED) else each.features
        by.setdefault((kind, each.layer), []).append(each)
    return [averaged(some) for some in by.values()]


@dataclass
class _Report:
    """evaluation.json, which is complete after every write. Rank 0 writes it."""

    path: Path
    loaded: Loaded
    judge: _Judge

    def write(self, scores: list[Score]) -> None:
        if not is_primary():
            return
        judge, asked = self.judge, self.judge.asked
        content = {
            "weights": self.loaded.source,
            "network": self.loaded.network,
            "metric": judge.metric,
            "knn": {"metric": asked.neighbours.metric, "sigma": asked.neighbours.SIGMA},
            "linear_probe": vars(asked.probe),
            "published": asked.evaluate.PUBLISHED,
            # Of the answer that needs no features, in percent.
            "chance": judge.chance,
            # Class number -> name; empty if labels are numbers.
            "classes": judge.class_names,
            # Of TRAIN and TEST: how many, their fingerprint, and that of their labels.
            "images": judge.images,
            "notes": judge.notes,
            "scores": [vars(score) for score in joined(scores)],
            **results_of(self.path.parent),
        }
        write_json(self.path, content)


def _as_results(scores: Sequence[Score]) -> dict[str, Any]:
    """The names that config.EXPECTED_RESULTS uses."""
    results: dict[str, Any] = {}
    for score in scores:
        results.setdefault(score.features, {})[score.layer] = score.metrics
    return results


def _show_training(run: Run, weights: Path | None, loaded: Loaded) -> None:
    """Print the weights' file and, if it is in a run's folder, how its loss changed."""
    run.console.print(f"  checkpoint  {loaded.source}")
    run.console.print(f"  network     {loaded.network}")
    if weights is None or not (metrics := weights.parent.parent / "metrics.jsonl").exists():
        return
    losses = [step["loss"] for step in history.read(metrics.parent)]
    if losses:
        run.console.print(f"  metrics     {metrics}")
        run.console.print(
            f"  loss        {losses[0]:.3f} at first, {losses[-1]:.3f} at the last step"
        )
