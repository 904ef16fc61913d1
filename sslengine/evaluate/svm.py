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
for all classes: by the images of the training set that no machine was trained on, at most
VALIDATION of them; or, as published, by the result itself, and the report says so.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

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
Result = TypeVar("Result")
MakeKept = Callable[[str], Kept]  # from what the results depend on

# Of a class with too few images to choose by cross-validation.
FIXED_COST = 1.0
MOST_THREADS = 8  # each has a copy of the features
VALIDATION = 2000
CHOSEN_ON = {"train": "training images that are not drawn", "test": "the test images"}


@dataclass(frozen=True)
class _Sets:
    features: Features
    rows: Tensor  # indicators of all classes
    judged: Features
    wanted: Tensor
    classes: Tensor  # that some images show and others do not
    single: bool  # an image shows one class

    @classmethod
    def of(cls, name: str, train: Rows, labels: Tensor, test: Rows, test_labels: Tensor,
           options: SvmOptions) -> _Sets:  # fmt: skip
        rows, wanted = indicators(labels, test_labels)
        features, judged = make_matrix(train, options), make_matrix(test, options)
        check_features(name, torch.from_numpy(features), labels, torch.from_numpy(judged))
        classes = both_kinds(rows, options.cls_list)
        if not (wanted[:, classes] > 0).any():
            raise DataError("the test images show none of the classes.")
        return cls(features, rows, judged, wanted, classes, labels.ndim == 1)

    @property
    def note(self) -> tuple[str, ...]:
        several = self.rows.shape[1]
        count = several - len(self.classes)
        text = f"{count} of {several} classes have no images of both kinds: left out"
        return (text,) * bool(count)


def indicators(labels: Tensor, test_labels: Tensor) -> tuple[Tensor, Tensor]:
    """Make rows of indicators of both sets, (images, classes)."""
    labels, test_labels = labels.cpu(), test_labels.cpu()
    if labels.ndim == 2:
        return labels, test_labels
    numbers = torch.arange(1 + int(labels.max()) if len(labels) else 0)
    rows, wanted = (each.unsqueeze(1).eq(numbers).to(torch.int8) for each in (labels, test_labels))
    return rows.masked_fill(labels.lt(0).unsqueeze(1), -1), wanted


def make_matrix(features: Rows, options: SvmOptions) -> Features:
    whole = torch.cat([each.double() for each in blocks(features)]).cpu()
    if options.normalize:
        whole = whole / (whole.norm(dim=1, keepdim=True) + 1e-5)
    found: Features = whole.numpy()
    return found


def both_kinds(rows: Tensor, chosen: Sequence[int] = ()) -> Tensor:
    """Return the classes that some images show and others do not. chosen: numbers, or all."""
    if chosen and not 0 <= min(chosen) <= max(chosen) < rows.shape[1]:
        raise DataError(f"config.SVM.cls_list: the classes are 0 to {rows.shape[1] - 1}.")
    both = (rows > 0).any(dim=0) & (rows == 0).any(dim=0)
    classes = torch.tensor(list(chosen))[both[list(chosen)]] if chosen else both.nonzero().flatten()
    if not len(classes):
        raise DataError("no class has both images that show it and images that do not.")
    return classes


def fit_machine(features: Features, row: Tensor, cost: float, options: SvmOptions) -> Any:
    """Fit to the images whose indicator is known.

    The solver draws images in a random order, from one generator for all threads: a score of fits
    that stop before they have converged is not the same in every run.
    """
    known = (row >= 0).numpy()
    machine: Any = LinearSVC(  # type: ignore[no-untyped-call]
        C=cost, class_weight={1: 2, -1: 1}, loss=options.loss, penalty=options.penalty, tol=1e-4,
        intercept_scaling=1.0, dual=options.dual, max_iter=options.max_iter, random_state=0,
    )  # fmt: skip
    return machine.fit(features[known], signs_of(row[row >= 0]))


def signs_of(row: Tensor) -> NDArray[np.int8]:
    """Return 1 for images that show the class, -1 for others."""
    signs: NDArray[np.int8] = torch.where(row > 0, 1, -1).to(torch.int8).numpy()
    return signs


def _is_unfinished(machine: Any, options: SvmOptions) -> bool:
    return bool(machine.n_iter_ >= options.max_iter)


def note_unfinished(count: int) -> tuple[str, ...]:
    return (f"{count} fits stopped before they converged (max_iter)",) * bool(count)


def work_in_threads(work: Callable[[Any], Result], items: Sequence[Any]) -> list[Result]:
    """Work in threads: the solver releases the interpreter's lock; unfinished fits are counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
            return list(pool.map(work, items))


def _describe(options: SvmOptions) -> str:
    """Name all that a machine depends on."""
    return repr(replace(options, force_retrain=False, low_shot=LowShotOptions()))


def _keep(kept: Kept | None, name: str, compute: Callable[[], Mapping[str, Any]]) -> Any:
    """Return what is kept, or compute it."""
    held = kept.get(name) if kept else None
    if held is not None:
        return held
    return kept.put(name, compute()) if kept else compute()


# ---- all images


@protocol("SVM")
def svm(
    train: Rows, labels: Tensor, test: Rows, test_labels: Tensor, options: SvmOptions | None = None,
    kept: MakeKept | None = None,
) -> Outcome:  # fmt: skip
    """Score mAP. labels: class numbers, or rows of indicators 1, 0, and -1 for unknown."""
    options = options or SvmOptions()
    sets = _Sets.of("SVM", train, labels, test, test_labels, options)
    held = kept(digest(sets.features, sets.rows.numpy(), _describe(options))) if kept else None

    def fit(number: int) -> Any:
        row = sets.rows[:, number]
        return _keep(held, f"cls{number}", lambda: _fit_class(sets.features, row, options))

    found = work_in_threads(fit, sets.classes.tolist())
    scores = torch.from_numpy(
        np.stack([sets.judged @ each["weights"] + float(each["bias"]) for each in found], axis=1)
    )
    precisions = average_precision(scores, sets.wanted[:, sets.classes])
    metrics = {"mAP": 100 * float(precisions.nanmean())}
    answers = scores
    if sets.single:
        answers = sets.classes[scores.argmax(dim=1)]
        metrics["accuracy"] = 100 * float((answers == test_labels.cpu()).double().mean())
    costs, best = (
        [float(each["cost"]) for each in found],
        [each["held_out"].max() for each in found],
    )
    details = {
        "costs": dict(zip(sets.classes.tolist(), costs)),
        "cross_validated_mAP": 100 * float(torch.tensor(best).nanmean()),
    }
    tables = {
        "crossval_ap": np.stack([each["held_out"] for each in found]),
        "chosen_cost": np.array(costs),
        "test_ap": precisions.unsqueeze(1).numpy(),
    }
    fixed = sum(np.isnan(each) for each in best)
    notes = sets.note + note_unfinished(sum(int(each["unfinished"]) for each in found))
    if fixed:
        notes += (f"{fixed} classes have too few images to choose a cost: it is {FIXED_COST:g}",)
    chosen = [cost for cost, score in zip(costs, best, strict=True) if not np.isnan(score)]
    counts = answers.unique(dim=0, return_counts=True)[1]
    notes += note_choice(chosen, options.costs.all, counts, "cost")
    return Outcome(metrics, notes, details, tables)


def _fit_class(features: Features, row: Tensor, options: SvmOptions) -> dict[str, Any]:
    """Return one class' machine; held_out: average precision by cost, NaN: the cost is fixed."""
    known = (row >= 0).numpy()
    features, row = features[known], row[row >= 0]
    signs = signs_of(row)
    folds = min(options.cross_val_folds, int((signs > 0).sum()), int((signs < 0).sum()))
    cost, unfinished = FIXED_COST, 0
    held_out = np.full(len(options.costs.all), np.nan)
    if folds > 1:
        split: Any = StratifiedKFold(folds)  # type: ignore[no-untyped-call]
        parts = list(split.split(features, signs))
        for place, each in enumerate(options.costs.all):
            machines = [fit_machine(features[some], row[some], each, options) for some, _ in parts]
            held_out[place] = fmean(
                average_precision_score(signs[held], machine.decision_function(features[held]))
                for machine, (_, held) in zip(machines, parts, strict=True)
            )
            unfinished += sum(_is_unfinished(machine, options) for machine in machines)
        cost = options.costs.all[int(held_out.argmax())]  # of equally good costs the first
    machine = fit_machine(features, row, cost, options)
    unfinished += _is_unfinished(machine, options)
    return {"weights": machine.coef_[0], "bias": float(machine.intercept_[0]), "cost": cost,
            "held_out": held_out, "unfinished": unfinished}  # fmt: skip


# ---- few images


@protocol("Low-shot SVM")
def low_shot_svm(
    train: Rows, labels: Tensor, test: Rows, test_labels: Tensor, options: SvmOptions | None = None,
    kept: MakeKept | None = None,
) -> Outcome:  # fmt: skip
    """Score each number of shots of config.SVM.low_shot: the mean over the draws."""
    options = options or SvmOptions()
    costs, how = options.costs.all, options.low_shot
    sets = _Sets.of("Low-shot SVM", train, labels, test, test_labels, options)
    held = None
    if kept:
        given = (sets.rows.numpy(), sets.judged, sets.wanted.numpy(), f"{_describe(options)} same")
        held = kept(digest(sets.features, *given))
    metrics, notes, unfinished = {}, sets.note, 0
    details: dict[str, Any] = {}
    tables: dict[str, Features] = {}
    for k in how.k_values:
        few = int(((sets.rows[:, sets.classes] > 0).sum(dim=0) < k).sum())
        if few:
            several = len(sets.classes)
            notes += (f"k={k}: {few} of {several} classes have fewer images: all are used",)
        found = []
        for seed in how.sample_inds:
            name = f"sample{seed}_k{k}"
            found.append(_keep(held, name, lambda k=k, seed=seed: _draw(sets, k, seed, options)))  # type: ignore[misc]
            tables[name] = np.array([found[-1]["results"]])
        place, chosen = _best([each["results" if how.choose == "test" else "held_out"]
                               for each in found], costs)  # fmt: skip
        if not chosen:
            notes += (f"k={k}: no images are left to choose the cost: it is {costs[place]:g}",)
        same = torch.tensor([len(sets.judged) * any(each["same"][place] for each in found)])
        said = note_choice([costs[place]] * chosen, costs, same, "cost")
        notes += tuple(f"k={k}: {each}" for each in said)
        results = [100 * float(each["results"][place]) for each in found]
        published = np.mean([each["results"] for each in found], axis=0).max()
        metrics[f"k={k} mAP"] = Spread.over(results).mean
        details[f"k={k}"] = {
            "min": min(results), "max": max(results), "std": float(np.std(results)),
            "interval": Spread.over(results).half,
            "cost": costs[place], "chosen_on": how.choose if chosen else "",
            "best_on_test": 100 * float(published),
        }  # fmt: skip
        unfinished += sum(int(each["unfinished"]) for each in found)
    notes += ("costs are chosen on the test set",) * (how.choose == "test")
    details["chosen_on"] = CHOSEN_ON[how.choose]
    notes += note_unfinished(unfinished)
    return Outcome(metrics, notes, details, tables, tuple(how.sample_inds))


def _draw(sets: _Sets, k: int, seed: int, options: SvmOptions) -> dict[str, Any]:
    """Return for each cost the mAP of the test images and of those left out, and whether all
    scores of the test images are the same."""
    rows, wanted = sets.rows[:, sets.classes], sets.wanted[:, sets.classes]
    drawn = _choose_images(rows, sets.single, k, seed)
    # Of the images that were not drawn for any class.
    rest = (drawn < 0).all(dim=1).nonzero().flatten()
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(0))
    rest = rest[order[:VALIDATION].sort().values]
    jobs = [(row, cost) for cost in options.costs.all for row in drawn.T]

    def fit(job: tuple[Tensor, float]) -> tuple[Features, Features, bool]:
        machine = fit_machine(sets.features, *job, options)
        scores = (machine.decision_function(some) if len(some) else np.empty(0)
                  for some in (sets.judged, sets.features[rest.numpy()]))  # fmt: skip
        return *scores, _is_unfinished(machine, options)  # type: ignore[return-value]

    found = work_in_threads(fit, jobs)
    classes = drawn.shape[1]
    of_costs = [found[start : start + classes] for start in range(0, len(found), classes)]
    return {
        "results": [_mean_ap([each[0] for each in some], wanted) for some in of_costs],
        "held_out": [_mean_ap([each[1] for each in some], rows[rest]) for some in of_costs],
        "same": [all(bool((each[0] == each[0][0]).all()) for each in some) for some in of_costs],
        "unfinished": sum(each[2] for each in found),
    }


def _choose_images(rows: Tensor, single: bool, k: int, seed: int) -> Tensor:
    """Draw images: the indicators, -1 where an image is not drawn for a class."""
    chosen = torch.full_like(rows, -1)
    if single:
        shown = (rows > 0).to(torch.int8)
        numbers = shown.argmax(dim=1).masked_fill(shown.sum(dim=1) == 0, -1)
        some = shots_of_each_class(numbers, k, seed)
        chosen[some] = rows[some]
        return chosen
    draw = torch.Generator().manual_seed(seed)
    for symbol, count in ((1, k), (0, max(1, rows.shape[1] - 1) * k)):
        for row, own in zip(rows.T, chosen.T):
            there = (row > 0 if symbol else row == 0).nonzero().flatten()
            own[there[torch.randperm(len(there), generator=draw)[:count]]] = symbol
    return chosen


def _mean_ap(scores: list[Features], wanted: Tensor) -> float:
    precisions = average_precision(torch.from_numpy(np.stack(scores, axis=1)), wanted)
    return 100 * float(precisions.nanmean()) / 100


def _best(held_out: Sequence[Sequence[float]], costs: Sequence[float]) -> tuple[int, bool]:
    """Return the place of the cost with the best mean over the draws; False: there is no mean."""
    mean = np.array(held_out).mean(axis=0)
    if np.isnan(mean).any():
        return min(range(len(costs)), key=lambda place: abs(costs[place] - FIXED_COST)), False
    return int(mean.argmax()), True
