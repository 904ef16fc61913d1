"""VISSL's linear SVMs on frozen features: one against all others for each class.

    1/2 |w|^2  +  cost * sum over the images of weight * max(0, 1 - y (w x + b))^2

with weight 2 for images of the class and 1 for others, on features x / |x|. The cost of each class
is the one with the best average precision in cross-validation on the training set; the result is
the mean of the classes' average precision on the test set, by VOC's interpolation.

Images whose indicator is unknown (-1) are left out for that class. VISSL's trainer takes them as
images that do not show the class.

low_shot_svm: each class is learned from a few images, for several draws of them. Of each class k
images that show it are drawn, and (classes - 1) * k that do not, if images show several classes
(VOC); or k images of each class, of which the others do not show it (Places). One cost is chosen
for all classes. `choose="train"`: by the images of the training set that no machine was trained on,
at most VALIDATION of them. `choose="test"`: by the result itself, as published; the report says so.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import LinearSVC
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import Rows, blocks, check_features
from sslengine.evaluate.few_shot import shots_of_each_class
from sslengine.evaluate.intervals import Spread
from sslengine.evaluate.options import LowShotOptions, SvmOptions
from sslengine.evaluate.outcome import Outcome, note_choice, protocol
from sslengine.evaluate.store import Kept, digest
from sslengine.meters.mean_ap import average_precision

Features = NDArray[np.float64]
Signs = NDArray[np.int8]  # 1: shows the class, -1: does not
Result = TypeVar("Result")
MakeKept = Callable[[str], Kept]  # from what the results depend on

# Of a class with too few images to choose by cross-validation.
FIXED_COST = 1.0
MOST_THREADS = 8  # each has a copy of the features
SHOTS = tuple(LowShotOptions().k_values)
DRAWS = 5
VALIDATION = 2000
CHOSEN_ON = {"train": "training images that are not drawn", "test": "the test images"}


def make_matrix(features: Rows, options: SvmOptions) -> Features:
    whole = torch.cat([each.double() for each in blocks(features)]).cpu()
    if options.normalize:
        whole = whole / (whole.norm(dim=1, keepdim=True) + 1e-5)
    found: Features = whole.numpy()
    return found


def fit_machine(features: Features, signs: Signs, cost: float, options: SvmOptions) -> Any:
    """The solver draws images in a random order: the seed makes it the same each time."""
    machine: Any = LinearSVC(  # type: ignore[no-untyped-call]
        C=cost, class_weight={1: 2, -1: 1}, loss=options.loss, penalty=options.penalty, tol=1e-4,
        intercept_scaling=1.0, dual=options.dual, max_iter=options.max_iter, random_state=0,
    )  # fmt: skip
    return machine.fit(features, signs)


def _describe(options: SvmOptions) -> str:
    """Tell all that a machine depends on."""
    return repr(replace(options, force_retrain=False, low_shot=LowShotOptions()))


def low_shot_arguments(options: LowShotOptions) -> dict[str, Any]:
    return {"shots": options.k_values, "draws": options.sample_inds, "choose": options.choose}


@protocol("SVM")
def svm(
    train: Rows, labels: Tensor, test: Rows, test_labels: Tensor, options: SvmOptions | None = None,
    kept: MakeKept | None = None,
) -> Outcome:  # fmt: skip
    """Score mAP. labels: class numbers, or rows of indicators 1, 0, and -1 for unknown."""
    options = options or SvmOptions()
    rows, wanted = indicators(labels, test_labels)
    features, judged = make_matrix(train, options), make_matrix(test, options)
    check_features("SVM", torch.from_numpy(features), labels, torch.from_numpy(judged))
    classes = both_kinds(rows, options.cls_list)
    expect_shown(wanted[:, classes])
    held = kept(digest(features, rows.numpy(), _describe(options))) if kept else None
    found = work_in_threads(
        lambda each: _fit_class(features, rows[:, each], options, f"cls{each}", held),
        classes.tolist(),
    )
    scores = torch.from_numpy(np.stack([each.scores(judged) for each in found], axis=1))
    precisions = average_precision(scores, wanted[:, classes])
    metrics = {"mAP": 100 * float(precisions.nanmean())}
    answers = scores
    if labels.ndim == 1:
        answers = classes[scores.argmax(dim=1)]
        metrics["accuracy"] = 100 * float((answers == test_labels.cpu()).double().mean())
    best = [each.held_out.max() for each in found]
    details = {
        "costs": dict(zip(classes.tolist(), [each.cost for each in found])),
        "cross_validated_mAP": 100 * float(torch.tensor(best).nanmean()),
    }
    tables = {
        "crossval_ap": np.stack([each.held_out for each in found]),
        "chosen_cost": np.array([each.cost for each in found]),
        "test_ap": precisions.unsqueeze(1).numpy(),
    }
    fixed = sum(np.isnan(each) for each in best)
    notes = note_left_out(rows, classes) + note_unfinished(sum(each.unfinished for each in found))
    if fixed:
        notes += (f"{fixed} classes have too few images to choose a cost: it is {FIXED_COST:g}",)
    chosen = [each.cost for each, score in zip(found, best, strict=True) if not np.isnan(score)]
    counts = answers.unique(dim=0, return_counts=True)[1]
    notes += note_choice(chosen, options.costs.all, counts, "cost")
    return Outcome(metrics, notes, details, tables)


@dataclass(frozen=True)
class _Machine:
    """One class against all others."""

    weights: Features
    bias: float
    cost: float
    held_out: Features  # average precision for each cost; NaN: the cost is fixed
    unfinished: int  # fits that stopped at max_iter

    def scores(self, judged: Features) -> Features:
        found: Features = judged @ self.weights + self.bias
        return found


def _fit_class(
    features: Features, row: Tensor, options: SvmOptions, name: str, kept: Kept | None
) -> _Machine:
    held = kept.get(name) if kept else None
    if held is not None:
        numbers = float(held["bias"]), float(held["cost"])
        return _Machine(held["weights"], *numbers, held["held_out"], int(held["unfinished"]))
    found = _fitted(features, row, options)
    if kept:
        kept.put(name, vars(found))
    return found


def _fitted(features: Features, row: Tensor, options: SvmOptions) -> _Machine:
    known = (row >= 0).numpy()
    features, signs = features[known], signs_of(row[row >= 0])
    folds = min(options.cross_val_folds, int((signs > 0).sum()), int((signs < 0).sum()))
    cost, unfinished = FIXED_COST, 0
    held_out = np.full(len(options.costs.all), np.nan)
    if folds > 1:
        split: Any = StratifiedKFold(folds)  # type: ignore[no-untyped-call]
        parts = list(split.split(features, signs))
        for place, each in enumerate(options.costs.all):
            fits = ((features[used], signs[used], each, options) for used, _ in parts)
            machines = [fit_machine(*some) for some in fits]
            held_out[place] = fmean(
                average_precision_score(signs[held], machine.decision_function(features[held]))
                for machine, (_, held) in zip(machines, parts, strict=True)
            )
            unfinished += sum(_unfinished(machine, options) for machine in machines)
        cost = options.costs.all[int(held_out.argmax())]  # of equally good costs the first
    machine = fit_machine(features, signs, cost, options)
    unfinished += _unfinished(machine, options)
    return _Machine(machine.coef_[0], float(machine.intercept_[0]), cost, held_out, unfinished)


def _unfinished(machine: Any, options: SvmOptions) -> bool:
    return bool(machine.n_iter_ >= options.max_iter)


# ---- few images


@protocol("Low-shot SVM")
def low_shot_svm(
    train: Rows,
    labels: Tensor,
    test: Rows,
    test_labels: Tensor,
    shots: Sequence[int] = SHOTS,
    draws: int | Sequence[int] = DRAWS,
    choose: Literal["train", "test"] = "train",
    options: SvmOptions | None = None,
    kept: MakeKept | None = None,
) -> Outcome:
    """Score each number of shots: the mean over the draws. draws: their number, or their seeds."""
    options = options or SvmOptions()
    seeds = range(draws) if isinstance(draws, int) else draws
    rows, wanted = indicators(labels, test_labels)
    features, judged = make_matrix(train, options), make_matrix(test, options)
    check_features("Low-shot SVM", torch.from_numpy(features), labels, torch.from_numpy(judged))
    classes = both_kinds(rows, options.cls_list)
    sets = _Sets(features, rows[:, classes], judged, wanted[:, classes], labels.ndim == 1)
    expect_shown(wanted[:, classes])
    held = None
    if kept:
        given = (rows.numpy(), judged, wanted.numpy(), f"{_describe(options)} same")
        held = kept(digest(features, *given))
    metrics, notes, unfinished = {}, note_left_out(rows, classes), 0
    details: dict[str, Any] = {}
    tables: dict[str, Features] = {}
    for k in shots:
        few = int(((sets.rows > 0).sum(dim=0) < k).sum())
        if few:
            notes += (f"k={k}: {few} of {len(classes)} classes have fewer images: all are used",)
        found = [_kept_draw(sets, k, seed, options, held) for seed in seeds]
        by = [each.results if choose == "test" else each.held_out for each in found]
        place, chosen = _best(by, options.costs.all)
        for seed, each in zip(seeds, found, strict=True):
            tables[f"sample{seed}_k{k}"] = np.array([each.results])
        if not chosen:
            notes += (
                f"k={k}: no images are left to choose the cost: it is {options.costs.all[place]:g}",
            )
        same = torch.tensor([len(judged) * any(each.same[place] for each in found)])
        said = note_choice([options.costs.all[place]] * chosen, options.costs.all, same, "cost")
        notes += tuple(f"k={k}: {each}" for each in said)
        results = [100 * each.results[place] for each in found]
        published = np.mean([each.results for each in found], axis=0).max()
        metrics[f"k={k} mAP"] = Spread.over(results).mean
        details[f"k={k}"] = {
            "min": min(results), "max": max(results), "std": float(np.std(results)),
            "interval": Spread.over(results).half,
            "cost": options.costs.all[place], "chosen_on": choose if chosen else "",
            "best_on_test": 100 * float(published),
        }  # fmt: skip
        unfinished += sum(each.unfinished for each in found)
    notes += ("costs are chosen on the test set",) * (choose == "test")
    details["chosen_on"] = CHOSEN_ON[choose]
    return Outcome(metrics, notes + note_unfinished(unfinished), details, tables, tuple(seeds))


@dataclass(frozen=True)
class _Sets:
    features: Features
    rows: Tensor
    judged: Features
    wanted: Tensor
    single: bool  # an image shows one class

    def drawn(self, k: int, seed: int) -> Tensor:
        """Draw images: the indicators, -1 where an image is not drawn for a class."""
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
        """Choose among the images that were not drawn for any class."""
        rest = (drawn < 0).all(dim=1).nonzero().flatten()
        draw = torch.Generator().manual_seed(0)
        return rest[torch.randperm(len(rest), generator=draw)[:VALIDATION].sort().values]


@dataclass(frozen=True)
class _Draw:
    results: list[float]  # for each cost
    held_out: list[float]
    same: list[bool]  # the scores of all test images
    unfinished: int


def _kept_draw(sets: _Sets, k: int, seed: int, options: SvmOptions, kept: Kept | None) -> _Draw:
    name = f"sample{seed}_k{k}"
    held = kept.get(name) if kept else None
    if held is not None:
        return _Draw(**{name: value.tolist() for name, value in held.items()})
    found = _draw(sets, k, seed, options)
    if kept:
        kept.put(name, vars(found))
    return found


def _draw(sets: _Sets, k: int, seed: int, options: SvmOptions) -> _Draw:
    drawn = sets.drawn(k, seed)
    rest = sets.validation(drawn)
    jobs = [(row, cost) for cost in options.costs.all for row in drawn.T]

    def fit(job: tuple[Tensor, float]) -> tuple[Features, Features, bool]:
        row, cost = job
        known = (row >= 0).numpy()
        machine = fit_machine(sets.features[known], signs_of(row[row >= 0]), cost, options)
        scores = (machine.decision_function(some) if len(some) else np.empty(0)
                  for some in (sets.judged, sets.features[rest.numpy()]))  # fmt: skip
        return *scores, _unfinished(machine, options)  # type: ignore[return-value]

    found = work_in_threads(fit, jobs)
    classes = drawn.shape[1]
    of_costs = [found[start : start + classes] for start in range(0, len(found), classes)]
    results = [_mean_ap([each[0] for each in some], sets.wanted) for some in of_costs]
    held_out = [_mean_ap([each[1] for each in some], sets.rows[rest]) for some in of_costs]
    same = [all(bool((each[0] == each[0][0]).all()) for each in some) for some in of_costs]
    return _Draw(results, held_out, same, sum(each[2] for each in found))


def _mean_ap(scores: list[Features], wanted: Tensor) -> float:
    precisions = average_precision(torch.from_numpy(np.stack(scores, axis=1)), wanted)
    return 100 * float(precisions.nanmean()) / 100


def _best(held_out: list[list[float]], costs: Sequence[float]) -> tuple[int, bool]:
    """Return the place of the cost with the best mean over the draws; False: there is no mean."""
    mean = np.array(held_out).mean(axis=0)
    if np.isnan(mean).any():
        return min(range(len(costs)), key=lambda place: abs(costs[place] - FIXED_COST)), False
    return int(mean.argmax()), True


# ---- what both share


def indicators(labels: Tensor, test_labels: Tensor) -> tuple[Tensor, Tensor]:
    """Make rows of indicators of both sets, (images, classes)."""
    labels, test_labels = labels.cpu(), test_labels.cpu()
    if labels.ndim == 2:
        return labels, test_labels
    classes = 1 + int(labels.max()) if len(labels) else 0
    numbers = torch.arange(classes)
    rows, wanted = (each.unsqueeze(1).eq(numbers).to(torch.int8) for each in (labels, test_labels))
    return rows.masked_fill(labels.lt(0).unsqueeze(1), -1), wanted


def both_kinds(rows: Tensor, chosen: Sequence[int] = ()) -> Tensor:
    """Return the classes that some images show and others do not. chosen: numbers, or all."""
    if chosen and not 0 <= min(chosen) <= max(chosen) < rows.shape[1]:
        raise DataError(f"config.SVM.cls_list: the classes are 0 to {rows.shape[1] - 1}.")
    both = (rows > 0).any(dim=0) & (rows == 0).any(dim=0)
    classes = torch.tensor(list(chosen))[both[list(chosen)]] if chosen else both.nonzero().flatten()
    if not len(classes):
        raise DataError("no class has both images that show it and images that do not.")
    return classes


def expect_shown(wanted: Tensor) -> None:
    if not (wanted > 0).any():
        raise DataError("the test images show none of the classes.")


def note_left_out(rows: Tensor, classes: Tensor) -> tuple[str, ...]:
    count = rows.shape[1] - len(classes)
    note = f"{count} of {rows.shape[1]} classes have no images of both kinds: left out"
    return (note,) * bool(count)


def note_unfinished(count: int) -> tuple[str, ...]:
    return (f"{count} fits stopped before they converged (max_iter)",) * bool(count)


def signs_of(row: Tensor) -> Signs:
    signs: Signs = torch.where(row > 0, 1, -1).to(torch.int8).numpy()
    return signs


def work_in_threads(work: Callable[[Any], Result], items: Sequence[Any]) -> list[Result]:
    """Work in threads: the solver releases the interpreter's lock; unfinished fits are counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
            return list(pool.map(work, items))
