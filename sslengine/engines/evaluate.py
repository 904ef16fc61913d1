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

import numpy as np
import torch
from torch import Tensor

from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.judged_view import described
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.classes import Classes
from sslengine.data.manifest.subset import number_groups
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import is_primary
from sslengine.engines.features import Network, StoredSplit, store_split
from sslengine.engines.judged_networks import networks_of
from sslengine.engines.on_images import Judged, run_on_images
from sslengine.engines.report import (
    read_results,
    show_all,
    show_protocols,
    sort_by_start,
    write_answers,
    write_report,
)
from sslengine.engines.run import Run, check_results_here
from sslengine.engines.scoring import Asked, Score, Sets, add_gains, averaged, chance
from sslengine.evaluate.features import Chosen, Rows, count_copies
from sslengine.evaluate.options import (
    EvaluateOptions,
    LinearProbeOptions,
    NearestNeighborOptions,
    SvmOptions,
    published,
)
from sslengine.evaluate.pairs import compare_pairs
from sslengine.evaluate.store import Store
from sslengine.models.weights.load import Loaded, other_classes
from sslengine.monitor import history
from sslengine.monitor.run_facts import (
    COMPLETE,
    PIXELS,
    REPORT,
    TRAINED,
    UNTRAINED,
    most_neighbours,
    read_facts,
)
from sslengine.monitor.trackers import add_scores
from sslengine.monitor.verdict import judge_run
from sslengine.precision import choose_float64_device
from sslengine.registry import register_engine
from sslengine.trained import require_weights

GROUPS = "config.LINEAR_PROBE.GROUP_COLUMN"
NO_LABELS = "the images have no labels: kNN, linear probe and what else needs them are left out"


@register_engine("evaluate")
def evaluate(run: Run) -> None:
    """All ranks compute features, kNN and the probe; the others do not wait for rank 0's rest."""
    weights = require_weights(run.config, run.run_dir)
    judge = _Judge(run)
    asked = judge.asked
    networks, judge.loaded = networks_of(run, weights)
    sets = judge.sets(networks)
    judge.note(other_classes(judge.loaded.classes, [judge.class_names]))
    scores = asked.score_labels(sets, judge.note, judge.write)
    given = (run, networks, sets, judge.found, judge.folder, asked.evaluate, asked.probe, weights)
    run_on_images(Judged(*given), scores, judge.write)
    if not is_primary():
        return
    run.describe()
    pixels = next(each for each in sets if each.features == PIXELS)
    judge.copies = 0 if pixels.test is None else count_copies(pixels.train, pixels.test)
    asked.rest(scores, sets, judge.write)
    judge.write_answers(scores, sets[0])
    _show_training(run, weights, judge.loaded)
    run.console.print(f"  features    {judge.folder}")
    run.console.print(f"  report      {run.run_dir / REPORT}")
    shown = joined(scores)
    results: dict[str, Any] = {}  # by the names that config.EXPECTED_RESULTS uses
    for score in shown:
        results.setdefault(score.features, {})[score.layer] = score.metrics
    judge.notes += add_scores(run.run_dir, results)
    show_protocols(run.console, sort_by_start(read_results(run.run_dir)))
    show_all(run.console, shown, judge.metric, judge.chance, judge.notes)
    facts = read_facts(run.run_dir)
    scored = replace(facts, status=replace(facts.status, status=COMPLETE))
    run.console.print(f"\n{judge_run(scored).text}")
    check_results_here(run, {"test": results})


class _Judge:
    """Stores the features of both splits, and writes the report of their scores."""

    loaded: Loaded  # the trained weights

    def __init__(self, run: Run) -> None:
        self.run, self.data = run, read(run.config, DataOptions)
        options = read(run.config, EvaluateOptions)
        self.folder = Path(options.FEATURES or run.run_dir / "features")
        probe = read(run.config, LinearProbeOptions)
        hold_out = self.data.HOLD_OUT
        of_test = hold_out.GROUP_COLUMN if hold_out.SHARE else ""
        probe = replace(probe, GROUP_COLUMN=probe.GROUP_COLUMN or of_test)
        by = published(options.PUBLISHED, read(run.config, NearestNeighborOptions), probe)
        machines, device = read(run.config, SvmOptions), choose_float64_device(run.device)
        self.asked = Asked(options, *by, machines, device)
        self.seed = read(run.config, RunOptions).SEED_VALUE
        tested = bool(self.data.TEST.DATA_SOURCES or hold_out.SHARE)
        self.splits = ["TRAIN", "TEST"] if tested else ["TRAIN"]
        self.notes: list[str] = []
        self.class_names: list[str] = []
        self.metric = "accuracy"
        self.chance: float | None = None
        self.found: dict[str, StoredSplit] = {}
        self.groups: Tensor | None = None  # of TRAIN's images
        self.wanted: Tensor | None = None  # of the test images
        self.copies = 0  # test images that are also training images

    def note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def sets(self, networks: Sequence[Network]) -> list[Sets]:
        """Read each image once, and only where no store has its features. Collective."""
        classes: list[Classes] = []
        if self._is_labelled("TRAIN"):  # before images are read: an unknown column is an error
            self.groups = read_groups(self.run, self.asked.probe.GROUP_COLUMN)
        for split in self.splits:
            then = "kNN" if split == self.splits[-1] else "features of test"
            dtype = self.asked.evaluate.DTYPE
            given = (split, networks, self.folder, classes, dtype)
            self.found[split] = store_split(self.run, *given, then=then)
            classes = self.found[split].classes
        if not self._is_labelled("TRAIN"):
            self.note(NO_LABELS)
        else:
            self.class_names = list(classes[0].names)
            self.metric = "mAP" if classes[0].width else "accuracy"
        sets = [each for network in networks for each in self._layers(network)]
        self.wanted = sets[0].wanted
        return sets

    def _layers(self, network: Network) -> list[Sets]:
        view = described([dict(each) for each in self.data.TRAIN.TRANSFORMS])
        halves = {split: self._half(stored.stores[network.name], split)
                  for split, stored in self.found.items()}  # fmt: skip
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
        """Read a split without the images that have no class."""
        layers: dict[str, Rows] = {name: store.layer(name) for name in store.layers}
        if not self._is_labelled(split):
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

    def _is_labelled(self, split: str) -> bool:
        return bool(getattr(self.data, split).LABEL_TYPE == "standard")

    # ---- the report, which is complete after every write; rank 0 writes it

    def write(self, scores: list[Score]) -> None:
        if not is_primary():
            return
        shown = joined(scores)
        if self.wanted is not None and self.wanted.ndim == 1:
            add_gains(shown, self.wanted)
        split = getattr(self.data, self.splits[-1])
        named = split.DATA_PATHS or split.DATASET_NAMES or split.DATA_SOURCES
        content = {
            "weights": self.loaded.source,
            "network": self.loaded.network,
            "published": self.asked.evaluate.PUBLISHED,
            # Class number -> name; empty if labels are numbers.
            "classes": self.class_names,
            # Of TRAIN and TEST: how many, their fingerprint, and that of their labels.
            "images": self.images,
            "copies": self.copies,
            "below_pixels": self._below_pixels(scores),
            "data": ", ".join(map(str, named)),
            **self.asked.document(shown, self.metric, self.chance, self.notes),
            **read_results(self.run.run_dir),
        }
        write_report(self.run.run_dir, content)

    @cached_property
    def images(self) -> dict[str, Any]:
        """The identity of the images of each split, for rank 0."""
        splits = self.found.items()
        return {name: each.identified(getattr(self.data, name)) for name, each in splits}

    def _below_pixels(self, scores: Sequence[Score]) -> list[str]:
        """Name the classes for which raw pixels answer more test images rightly."""
        of = {each.features: each.answers for each in scores}
        if self.wanted is None or not of.get(PIXELS) or not of.get(TRAINED):
            return []
        metric = most_neighbours(of[TRAINED])
        below = []
        for number in self.wanted.unique().tolist():
            some = self.wanted == number
            right = (of[kind][metric][some] == number for kind in (PIXELS, TRAINED))
            if compare_pairs(*right)[1] > 0:
                below.append(self.class_names[number] if self.class_names else str(number))
        return below

    def write_answers(self, scores: Sequence[Score], images: Sets) -> None:
        """Keep the class that each kind of features gives to each test image."""
        answers = {f"{each.features}/{each.layer}/{metric}": classes.numpy()
                   for each in scores for metric, classes in each.answers.items()}  # fmt: skip
        if answers and images.wanted is not None and images.tested is not None:
            about = {"numbers": images.tested.numpy(), "wanted": images.wanted.numpy()}
            write_answers(self.run.run_dir, self.images, {**about, **answers})


@dataclass(frozen=True)
class _Half:
    """The features of one split."""

    layers: Mapping[str, Rows]
    labels: Tensor | None
    numbers: Tensor  # of the images


def joined(scores: Sequence[Score]) -> list[Score]:
    """Join the untrained networks to one."""
    by: dict[tuple[str, str], list[Score]] = {}
    for each in scores:
        kind = UNTRAINED if each.features.startswith(UNTRAINED) else each.features
        by.setdefault((kind, each.layer), []).append(each)
    return [averaged(some) for some in by.values()]


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


def read_groups(run: Run, column: str) -> Tensor | None:
    """Number the images of TRAIN: images of one group (a patient, a video) have one number."""
    if not column:
        return None
    data, seed = read(run.config, DataOptions), read(run.config, RunOptions).SEED_VALUE
    dataset = SSLDataset(data.TRAIN, "TRAIN", seed, hold_out=data.HOLD_OUT)
    numbers = number_groups(dataset.sources[0].column(column, GROUPS))
    return torch.from_numpy(numbers[np.asarray(dataset.rows)])
