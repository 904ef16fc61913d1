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
from sslengine.engines.few_label_lists import write_lists
from sslengine.engines.judged_images import Judged
from sslengine.engines.judged_networks import networks_of
from sslengine.engines.on_images import run_on_images
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
from sslengine.engines.stored import Network, StoredSplit, store_split
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
    networks, loaded = networks_of(run, weights)
    sets = judge.sets(networks)
    judge.note(other_classes(loaded.classes, [judge.class_names]))
    report = _Report(run.run_dir, loaded, judge)
    scores = judge.asked.score_labels(sets, judge.note, report.write)
    judged = judge.judged(networks, sets, weights)
    run_on_images(judged, scores, report.write)
    if not is_primary():
        return
    run.describe()
    judge.copies = _copies(sets)
    if "few_labels" in judge.asked.evaluate.PROTOCOLS:
        write_lists(judge.found["TRAIN"], sets[0], run.run_dir / "few_labels", judge.class_names)
    judge.asked.rest(scores, sets, report.write)
    report.write_answers(scores, sets)
    _show_training(run, weights, loaded)
    run.console.print(f"  features    {judge.folder}")
    run.console.print(f"  report      {run.run_dir / REPORT}")
    results = {"test": _name_results(joined(scores))}
    judge.notes += add_scores(run.run_dir, results["test"])
    show_protocols(run.console, sort_by_start(read_results(run.run_dir)))
    show_all(run.console, joined(scores), judge.metric, judge.chance, judge.notes)
    facts = read_facts(run.run_dir)
    scored = replace(facts, status=replace(facts.status, status=COMPLETE))
    run.console.print(f"\n{judge_run(scored).text}")
    check_results_here(run, results)


def _copies(sets: Sequence[Sets]) -> int:
    """Count test images that are also training images: what they score says nothing of others."""
    pixels = next(each for each in sets if each.features == PIXELS)
    return 0 if pixels.test is None else count_copies(pixels.train, pixels.test)


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
        machines, device = read(run.config, SvmOptions), choose_float64_device(run.device)
        self.asked = Asked(options, *published(options.PUBLISHED, *by), machines, device)
        self.seed = read(run.config, RunOptions).SEED_VALUE
        self.notes: list[str] = []
        self.class_names: list[str] = []
        self.metric = "accuracy"
        self.chance: float | None = None
        self.found: dict[str, StoredSplit] = {}
        self.groups: Tensor | None = None  # of TRAIN's images
        self.wanted: Tensor | None = None  # of the test images
        self.copies = 0  # test images that are also training images

    @property
    def place(self) -> str:
        """The place of the test images, or of those of training where there are none."""
        split = getattr(self.data, self.splits[-1])
        named = split.DATA_PATHS or split.DATASET_NAMES or split.DATA_SOURCES
        return ", ".join(map(str, named))

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
            self.groups = read_groups(self.run, self.asked.probe.GROUP_COLUMN)
        for split in self.splits:
            then = "kNN" if split == self.splits[-1] else "features of test"
            dtype = self.asked.evaluate.DTYPE
            found[split] = store_split(
                self.run, split, networks, self.folder, classes, dtype, then=then
            )
            classes = found[split].classes
        if not self.labelled("TRAIN"):
            self.note(NO_LABELS)
        else:
            self.class_names = list(classes[0].names)
            self.metric = "mAP" if classes[0].width else "accuracy"
        sets = [each for network in networks for each in self._layers(network, found)]
        self.wanted = sets[0].wanted
        return sets

    @cached_property
    def images(self) -> dict[str, Any]:
        """The identity of the images of each split, for rank 0."""
        splits = self.found.items()
        return {name: each.identified(getattr(self.data, name)) for name, each in splits}

    def judged(
        self, networks: Sequence[Network], sets: Sequence[Sets], weights: Path | None
    ) -> Judged:
        """Gather what protocols on further images need."""
        asked = self.asked
        return Judged(
            self.run, networks, sets, self.found, self.folder, asked.evaluate, asked.probe, weights
        )

    def compared(self, scores: Sequence[Score]) -> list[Score]:
        """The untrained networks as one, and each kind of features with the trained ones."""
        found = joined(scores)
        if self.wanted is not None and self.wanted.ndim == 1:
            add_gains(found, self.wanted)
        return found

    def below_pixels(self, scores: Sequence[Score]) -> list[str]:
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

    def _layers(self, network: Network, found: Mapping[str, StoredSplit]) -> list[Sets]:
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
        """Read a split without the images that have no class."""
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
    """The report, which is complete after every write. Rank 0 writes it."""

    run_dir: Path
    loaded: Loaded
    judge: _Judge

    def write(self, scores: list[Score]) -> None:
        if not is_primary():
            return
        judge = self.judge
        content = {
            "weights": self.loaded.source,
            "network": self.loaded.network,
            "published": judge.asked.evaluate.PUBLISHED,
            # Class number -> name; empty if labels are numbers.
            "classes": judge.class_names,
            # Of TRAIN and TEST: how many, their fingerprint, and that of their labels.
            "images": judge.images,
            "copies": judge.copies,
            "below_pixels": judge.below_pixels(scores),
            "data": judge.place,
            **judge.asked.document(judge.compared(scores), judge.metric, judge.chance, judge.notes),
            **read_results(self.run_dir),
        }
        write_report(self.run_dir, content)

    def write_answers(self, scores: Sequence[Score], sets: Sequence[Sets]) -> None:
        """Keep the class that each kind of features gives to each test image."""
        images = sets[0]
        answers = {f"{each.features}/{each.layer}/{metric}": classes.numpy()
                   for each in scores for metric, classes in each.answers.items()}  # fmt: skip
        if answers and images.wanted is not None and images.tested is not None:
            about = {"numbers": images.tested.numpy(), "wanted": images.wanted.numpy()}
            write_answers(self.run_dir, self.judge.images, {**about, **answers})


def _name_results(scores: Sequence[Score]) -> dict[str, Any]:
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


def group_column(data: DataOptions, probe: LinearProbeOptions) -> str:
    """Name the column of groups that a probe holds out together; empty: none are known."""
    of_test = data.HOLD_OUT.GROUP_COLUMN if data.HOLD_OUT.SHARE else ""
    return probe.GROUP_COLUMN or of_test


def read_groups(run: Run, column: str) -> Tensor | None:
    """Number the images of TRAIN: images of one group (a patient, a video) have one number."""
    if not column:
        return None
    data, seed = read(run.config, DataOptions), read(run.config, RunOptions).SEED_VALUE
    dataset = SSLDataset(data.TRAIN, "TRAIN", seed, hold_out=data.HOLD_OUT)
    numbers = number_groups(dataset.sources[0].column(column, GROUPS))
    return torch.from_numpy(numbers[np.asarray(dataset.rows)])
