"""VISSL's low-shot SVM: each class is learned from a few images, for several draws of them.

Of each class k images that show it are drawn, and (classes - 1) * k that do not, if images show
several classes (VOC); or k images of each class, of which the others do not show it (Places).

One cost is chosen for all classes. `choose="train"`: by the images of the training set that no
machine was trained on, at most VALIDATION of them. `choose="test"`: by the result itself, as
published; the report says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sslengine.evaluate.features import Rows, check_features
from sslengine.evaluate.few_shot import shots_of_each_class
from sslengine.evaluate.intervals import Spread
from sslengine.evaluate.kept import Kept, digest_of
from sslengine.evaluate.options import LowShotOptions
from sslengine.evaluate.outcome import Outcome, note_choice, protocol
from sslengine.evaluate.svm import (
    FIXED_COST,
    Features,
    MakeKept,
    Svm,
    both_kinds,
    expect_shown,
    in_threads,
    indicators,
    left_out,
    mean_ap,
    not_converged,
    signs_of,
)

SHOTS = tuple(LowShotOptions().k_values)
DRAWS = 5
VALIDATION = 2000


def of_low_shot(options: LowShotOptions) -> dict[str, Any]:
    """The arguments of config.SVM.low_shot."""
    return {
        "shots": options.k_values, "draws": options.sample_inds, "choose": options.choose
    }  # fmt: skip


CHOSEN_ON = {"train": "training images that are not drawn", "test": "the test images"}


@protocol("Low-shot SVM")
def low_shot_svm(
    train: Rows,
    labels: Tensor,
    test: Rows,
    test_labels: Tensor,
    shots: Sequence[int] = SHOTS,
    draws: int | Sequence[int] = DRAWS,
    choose: Literal["train", "test"] = "train",
    options: Svm | None = None,
    kept: MakeKept | None = None,
) -> Outcome:
    """draws: their number, or their seeds."""
    options = options or Svm()
    seeds = range(draws) if isinstance(draws, int) else draws
    rows, wanted = indicators(labels, test_labels)
    features, judged = options.matrix(train), options.matrix(test)
    check_features("Low-shot SVM", torch.from_numpy(features), labels, torch.from_numpy(judged))
    classes = both_kinds(rows, options.classes)
    sets = _Sets(features, rows[:, classes], judged, wanted[:, classes], labels.ndim == 1)
    expect_shown(wanted[:, classes])
    held = (
        kept(digest_of(features, rows.numpy(), judged, wanted.numpy(), repr((options, "same"))))
        if kept
        else None
    )
    metrics, notes, unfinished = {}, left_out(rows, classes), 0
    details: dict[str, Any] = {}
    tables: dict[str, Features] = {}
    for k in shots:
        few = int(((sets.rows > 0).sum(dim=0) < k).sum())
        if few:
            notes += (f"k={k}: {few} of {len(classes)} classes have fewer images: all are used",)
        found = [_kept_draw(sets, k, seed, options, held) for seed in seeds]
        by = [each.results if choose == "test" else each.held_out for each in found]
        place, chosen = _best(by, options.costs)
        for seed, each in zip(seeds, found, strict=True):
            tables[f"sample{seed}_k{k}"] = np.array([each.results])
        if not chosen:
            notes += (
                f"k={k}: no images are left to choose the cost: it is {options.costs[place]:g}",
            )
        same = torch.tensor([len(judged) * any(each.same[place] for each in found)])
        said = note_choice([options.costs[place]] * chosen, options.costs, same, "cost")
        notes += tuple(f"k={k}: {each}" for each in said)
        results = [100 * each.results[place] for each in found]
        published = np.mean([each.results for each in found], axis=0).max()
        metrics[f"k={k} mAP"] = Spread.over(results).mean
        details[f"k={k}"] = {
            "min": min(results), "max": max(results), "std": float(np.std(results)),
            "interval": Spread.over(results).half,
            "cost": options.costs[place], "chosen_on": choose if chosen else "",
            "best_on_test": 100 * float(published),
        }  # fmt: skip
        unfinished += sum(each.unfinished for each in found)
    notes += ("costs are chosen on the test set",) * (choose == "test")
    details["chosen_on"] = CHOSEN_ON[choose]
    return Outcome(metrics, notes + not_converged(unfinished), details, tables, tuple(seeds))


@dataclass(frozen=True)
class _Sets:
    features: Features
    rows: Tensor
    judged: Features
    wanted: Tensor
    single: bool  # an image shows one class

    def drawn(self, k: int, seed: int) -> Tensor:
        """The indicators, where an image is not drawn for a class -1."""
        chosen = torch.full_like(self.rows, -1)
        if self.single:
            some = shots_of_each_class(self._numbers(), k, seed)
            chosen[some] = self.rows[some]
            return chosen
        draw = torch.Generator().manual_seed(seed)
        for symbol, count in ((1, k), (0, max(1, self.rows.shape[1] - 1) * k)):
            for row, own in zip(self.rows.T, chosen.T):
                there = (row > 0 if symbol else row == 0).nonzero().flatten()
                own[there[torch.randperm(len(there), generator=draw)[:count]]] = symbol
        return chosen

    def _numbers(self) -> Tensor:
        shown = (self.rows > 0).to(torch.int8)
        return shown.argmax(dim=1).masked_fill(shown.sum(dim=1) == 0, -1)

    def validation(self, drawn: Tensor) -> Tensor:
        """Images that were not drawn for any class."""
        rest = (drawn < 0).all(dim=1).nonzero().flatten()
        draw = torch.Generator().manual_seed(0)
        return rest[torch.randperm(len(rest), generator=draw)[:VALIDATION].sort().values]


@dataclass(frozen=True)
class _Draw:
    results: list[float]  # for each cost
    held_out: list[float]
    same: list[bool]  # the scores of all test images
    unfinished: int


def _kept_draw(sets: _Sets, k: int, seed: int, options: Svm, kept: Kept | None) -> _Draw:
    name = f"sample{seed}_k{k}"
    held = kept.get(name) if kept else None
    if held is not None:
        return _Draw(**{name: value.tolist() for name, value in held.items()})
    found = _draw(sets, k, seed, options)
    if kept:
        kept.put(name, vars(found))
    return found


def _draw(sets: _Sets, k: int, seed: int, options: Svm) -> _Draw:
    drawn = sets.drawn(k, seed)
    rest = sets.validation(drawn)
    jobs = [(row, cost) for cost in options.costs for row in drawn.T]

    def fit(job: tuple[Tensor, float]) -> tuple[Features, Features, bool]:
        row, cost = job
        known = (row >= 0).numpy()
        machine = options.fit(sets.features[known], signs_of(row[row >= 0]), cost)
        scores = (machine.decision_function(some) if len(some) else np.empty(0)
                  for some in (sets.judged, sets.features[rest.numpy()]))  # fmt: skip
        return *scores, machine.n_iter_ >= options.max_iter  # type: ignore[return-value]

    found = in_threads(fit, jobs)
    classes = drawn.shape[1]
    of_costs = [found[start : start + classes] for start in range(0, len(found), classes)]
    results = [_mean_ap([each[0] for each in some], sets.wanted) for some in of_costs]
    held_out = [_mean_ap([each[1] for each in some], sets.rows[rest]) for some in of_costs]
    same = [all(bool((each[0] == each[0][0]).all()) for each in some) for some in of_costs]
    return _Draw(results, held_out, same, sum(each[2] for each in found))


def _mean_ap(scores: list[Features], wanted: Tensor) -> float:
    return mean_ap(torch.from_numpy(np.stack(scores, axis=1)), wanted) / 100


def _best(held_out: list[list[float]], costs: Sequence[float]) -> tuple[int, bool]:
    """The place of the cost with the best mean over the draws; False if there is no mean."""
    mean = np.array(held_out).mean(axis=0)
    if np.isnan(mean).any():
        return min(range(len(costs)), key=lambda place: abs(costs[place] - FIXED_COST)), False
    return int(mean.argmax()), True
