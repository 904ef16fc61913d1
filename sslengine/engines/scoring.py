"""Scores of frozen features: kNN, a linear probe, metrics without labels, further protocols.

Ranks share kNN and the linear probe, which take the time of large sets. The rest is rank 0's, and
the other ranks do not wait for it. A protocol that fails does not stop the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.answers import Probed, calibrate_probe, per_class
from sslengine.evaluate.features import Rows, held, rows_at
from sslengine.evaluate.few_shot import few_labels, few_shot_knn, few_shot_logistic
from sslengine.evaluate.intervals import Spread, bootstrap, wilson
from sslengine.evaluate.knn import knn_curve, knn_scores
from sslengine.evaluate.label_free.metric import Inputs, measure, sub_sample
from sslengine.evaluate.linear import linear_probe, mean_average_precision
from sslengine.evaluate.options import (
    EvaluateOptions,
    LinearProbeOptions,
    NearestNeighborOptions,
    SvmOptions,
)
from sslengine.evaluate.outcome import VERSIONS, Outcome
from sslengine.evaluate.pairs import compare_pairs
from sslengine.evaluate.retrieval import retrieval
from sslengine.evaluate.svm import low_shot_svm, svm
from sslengine.monitor.run_facts import TRAINED
from sslengine.progress import progress

log = logging.getLogger("sslengine")

# Training features and labels, test features and labels.
LabelledSets = tuple[Rows, Tensor, Rows, Tensor]

NO_VIEWS = dict.fromkeys(("views", "projections", "previous"), "`sslengine rank` computes it")
# Where hyper-parameters are chosen, of protocols whose details do not say it.
CHOSEN_ON = {
    "few_shot_linear": "cross-validation on the drawn images; of fewer than 5 nothing: it is fixed",
    "svm": "cross-validation on the training images",
}
NOTHING = "nothing: there is nothing to choose"


@dataclass(frozen=True)
class Sets:
    """Training and test features of one kind and layer."""

    features: str
    layer: str
    train: Rows
    # Class numbers, or rows of indicators; None: the images have no labels.
    labels: Tensor | None = None
    test: Rows | None = None
    wanted: Tensor | None = None
    # What the features come from, for the report.
    about: Mapping[str, Any] = field(default_factory=dict)
    # Of the training images in their dataset, and of the test images.
    numbers: Tensor | None = None
    tested: Tensor | None = None
    # A number for each training image; those of one group are held out together.
    groups: Tensor | None = None

    @property
    def labelled(self) -> LabelledSets | None:
        if self.labels is None or self.test is None or self.wanted is None:
            return None
        return self.train, self.labels, self.test, self.wanted


@dataclass
class Score:
    """Of one kind of features and layer; accuracies or mAP on the test images, in percent."""

    features: str
    layer: str
    knn: dict[int, float] = field(default_factory=dict)  # by the number of neighbours
    linear: float | None = None  # None: not computed yet, or too few labels
    knn_top5: dict[int, float] = field(default_factory=dict)
    protocols: dict[str, Any] = field(default_factory=dict)
    label_free: dict[str, Any] = field(default_factory=dict)  # by metric
    # 95 % intervals by metric: over the test images, or, of several seeds, over these.
    intervals: dict[str, list[float]] = field(default_factory=dict)
    # By metric: the trained features' score minus this one on the same images, and its interval.
    gains: dict[str, list[float]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    # By metric: the class that each test image gets; of several networks a row for each.
    answers: dict[str, Tensor] = field(default_factory=dict)
    probe: Probed = None  # of which `linear` is the score

    def as_dict(self) -> dict[str, Any]:
        """All but the answers, which have a separate file, and the probe."""
        left_out = ("answers", "probe")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    @property
    def metrics(self) -> dict[str, float]:
        """The scores by the names that config.EXPECTED_RESULTS and `intervals` use."""
        linear = {} if self.linear is None else {"linear": self.linear}
        return {**{f"knn_{k}": value for k, value in self.knn.items()}, **linear}


@dataclass(frozen=True)
class Asked:
    """What is computed, and on which device."""

    evaluate: EvaluateOptions
    neighbours: NearestNeighborOptions
    probe: LinearProbeOptions
    machines: SvmOptions
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def score_labels(
        self, sets: Sequence[Sets], note: Callable[[str], None], write: Callable[..., None]
    ) -> list[Score]:
        """All ranks call it. kNN first: it needs less time and fewer labels than a probe."""
        scores = [Score(each.features, each.layer, about=self._about(each)) for each in sets]
        linear, last = "linear probe", "metrics without labels"
        stages = (("kNN", linear, self._neighbours), (linear, last, self._linear))
        for name, then, compute in stages:
            said: dict[str, list[str]] = {}  # text -> the features that it is of
            for number, (score, each) in enumerate(zip(scores, sets, strict=True), 1):
                of = f"{each.features}, {each.layer}"
                texts: list[str] = []
                try:
                    with progress(f"{name} {number}/{len(sets)}: {of}", then=then):
                        compute(score, each, texts.append)
                except DataError as error:  # the other scores are still reported
                    log.warning("%s", error)
                    texts.append(str(error))
                    score.probe = str(error)
                for text in texts:
                    said.setdefault(text, []).append(of)
                write(scores)
            for text, which in said.items():
                note(text if len(which) == len(sets) else f"{'; '.join(which)}: {text}")
        return scores

    def rest(self, scores: list[Score], sets: Sequence[Sets], write: Callable[..., None]) -> None:
        """Compute what one rank computes: metrics without labels, and further protocols."""
        for score, each in zip(scores, sets, strict=True):
            with progress(f"metrics without labels of {each.features}, {each.layer}"):
                score.label_free = measure_label_free(each.train, self.evaluate.LABEL_FREE)
            write(scores)
        for score, each in zip(scores, sets, strict=True):
            if not (self.evaluate.PROTOCOLS and each.labelled):
                continue
            protocols = self.protocols(each.labelled, score.probe, each.groups)
            for name in filter(protocols.__contains__, self.evaluate.PROTOCOLS):
                with progress(f"protocol {name}"):
                    score.protocols[name] = make_row(name, protocols[name]())
            write(scores)

    def protocols(
        self, sets: LabelledSets, probe: Probed, groups: Tensor | None = None
    ) -> dict[str, Callable[[], Outcome]]:
        """Return those on features, by name. probe: the linear probe of these sets."""
        machines, tests = self.machines, sets[2:]
        return {
            "few_shot_knn": partial(few_shot_knn, *sets),
            "few_shot_linear": partial(few_shot_logistic, *sets, options=self.probe),
            "few_labels": partial(few_labels, *sets, options=self.probe, groups=groups),
            "svm": partial(svm, *sets, machines),
            "low_shot_svm": partial(low_shot_svm, *sets, machines),
            "retrieval": partial(retrieval, *tests),
            "calibration": partial(calibrate_probe, probe, *tests),
            "per_class": partial(per_class, probe, *tests),
        }

    def document(
        self, scores: Sequence[Score], metric: str, by_chance: float | None, notes: list[str]
    ) -> dict[str, Any]:
        """Return what a report says of scores. by_chance: of the answer without features."""
        return {
            "metric": metric,
            "knn": {"metric": self.neighbours.metric, "sigma": self.neighbours.SIGMA},
            "linear_probe": vars(self.probe), "chance": by_chance, "notes": notes,
            "scores": [score.as_dict() for score in scores],
        }  # fmt: skip

    def _about(self, each: Sets) -> dict[str, Any]:
        versions = {name: VERSIONS[name] for name in ("knn", "linear", "label_free")}
        about = {"seeds": [0], **each.about, "published": self.evaluate.PUBLISHED}
        return {**about, "number_of_seeds": len(about["seeds"]), "versions": versions}

    def _neighbours(self, score: Score, each: Sets, note: Callable[[str], None]) -> None:
        known: Any = each.labels
        within = known is not None and each.wanted is None and known.ndim == 1 and len(known) > 1
        if within:  # test labels lack
            note("kNN: without test labels each image of TRAIN is classified by the others")
            train, labels = test, wanted = _near(each.train), known
        elif each.labelled is None:
            return
        else:
            train, labels, test, wanted = (_near(one) for one in each.labelled)
        options, used = self.neighbours, count_used(self.neighbours, len(labels) - within)
        for k, fewer in used.items():
            if k > fewer:
                note(f"kNN with {note_few(k, fewer)}")
        score.about["knn_on"] = "TRAIN, each image by the others" if within else "TEST"
        how: dict[str, Any] = {
            "ks": [*used.values()], "sigma": options.SIGMA, "metric": options.metric,
            "device": self.device, "over_ranks": True,
        }  # fmt: skip
        if labels.ndim > 1:
            found = knn_scores(train, labels, test, **how)
            for k, fewer in used.items():
                measure_some = partial(_map_of, found[fewer], wanted)
                score.knn[k] = measure_some()
                score.intervals[f"knn_{k}"] = bootstrap(measure_some, wanted)
            return
        answers: dict[int, Tensor] = {}
        how |= {"top": (1, 5), "answers": answers, "own": within}
        shares = knn_curve(train, labels, test, wanted, **how)
        for k, fewer in used.items():
            score.knn[k], score.knn_top5[k] = shares[fewer]
            score.intervals[f"knn_{k}"] = wilson(score.knn[k], len(wanted))
            if not within:
                score.answers[f"knn_{k}"] = answers[fewer].cpu()

    def _linear(self, score: Score, each: Sets, note: Callable[[str], None]) -> None:
        if each.labelled is None:
            return
        train, labels, test, wanted = (_near(one) for one in each.labelled)
        how: dict[str, Any] = {"device": self.device, "over_ranks": True, "groups": each.groups}
        score.probe = found = linear_probe(train, labels, test, wanted, self.probe, **how)
        score.linear = found.test_accuracy
        score.intervals["linear"] = found.interval or wilson(found.test_accuracy, len(wanted))
        score.about["chosen_on"] = {"linear": found.chosen_on}
        score.about["penalty"] = found.penalty
        if found.fitted is not None:
            score.answers["linear"] = found.fitted.answers(test)
        for text in found.notes:
            note(f"linear probe: {text}")


def count_used(options: NearestNeighborOptions, count: int) -> dict[int, int]:
    """Count the neighbours that there are, for each k."""
    return {k: min(k, count) for k in options.neighbours}


def note_few(k: int, count: int) -> str:
    return f"k={k}: there are only {count} training images, and all of them vote"


def _near(rows: Any) -> Any:
    return rows if isinstance(rows, Tensor) else held(rows)


def _map_of(scores: Tensor, wanted: Tensor, images: Tensor | None = None) -> float:
    if images is None:
        return mean_average_precision(scores, wanted)
    return mean_average_precision(scores[images.to(scores.device)], wanted[images])


def measure_label_free(features: Rows, names: Sequence[str]) -> dict[str, Any]:
    """Measure the images of TRAIN; value, number of images, and why there is no value."""
    if not names:
        return {}
    some = rows_at(features, sub_sample(len(features))).flatten(1)
    found = measure(Inputs(some, missing=NO_VIEWS), names)
    return {name: each.as_json() for name, each in found.items()}


def make_row(name: str, found: Outcome) -> dict[str, Any]:
    """Make the report's row of a protocol. The rest is in `about` of the features."""
    return {
        "protocol": name,
        "version": VERSIONS[name],
        "metrics": dict(found.metrics),
        "notes": list(found.notes),
        "seeds": list(found.seeds),
        "number_of_seeds": len(found.seeds),
        "chosen_on": found.details.get("chosen_on", CHOSEN_ON.get(name, NOTHING)),
        "details": found.details,
    }


# For one chance at most so many scores are ordered, but in 8 orders at least.
ORDERED = 2**24


def chance(labels: Tensor, wanted: Tensor) -> float:
    """Score without features, in percent: TRAIN's most frequent class as the answer for each
    image, or the mean mAP of random orders."""
    if labels.ndim == 1:
        return 100.0 * float((wanted == labels.mode().values).double().mean())
    orders = min(200, max(8, ORDERED // wanted.numel()))
    draw = torch.Generator().manual_seed(0)
    scores = (torch.rand(wanted.shape, generator=draw) for _ in range(orders))
    return sum(mean_average_precision(each, wanted.cpu()) for each in scores) / orders


def averaged(scores: Sequence[Score]) -> Score:
    """One score of several seeds: means, and 95 % intervals of these; the rest is the first's."""
    first = scores[0]
    if len(scores) == 1:
        return first
    values = {name: [each.metrics[name] for each in scores if name in each.metrics]
              for name in first.metrics}  # fmt: skip
    seeds = [seed for each in scores for seed in each.about.get("seeds", ())]
    means = {name: Spread.over(some) for name, some in values.items()}
    return Score(
        first.features,
        first.layer,
        {k: means[f"knn_{k}"].mean for k in first.knn},
        means["linear"].mean if "linear" in means else None,
        first.knn_top5,
        first.protocols,
        first.label_free,
        {name: [each.mean - each.half, each.mean + each.half] for name, each in means.items()},
        about={**first.about, "seeds": seeds, "number_of_seeds": len(seeds), "values": values},
        answers={name: torch.stack([each.answers[name] for each in scores])
                 for name in first.answers if all(name in each.answers for each in scores)},
    )  # fmt: skip


def add_gains(scores: Sequence[Score], wanted: Tensor) -> None:
    """Compare the trained features with each other kind by their answers to the same images, and
    note the metrics by which all answers are the same.

    Of several layers the one of the same name is compared, or else the last.
    """
    trained = [each for each in scores if each.features == TRAINED]
    for score in scores if trained else ():
        score.about["constant"] = [name for name, each in score.answers.items()
                                   if len(wanted) > 1 and each.unique().numel() == 1]  # fmt: skip
        own = next((each for each in trained if each.layer == score.layer), trained[-1])
        for name in score.answers if score not in trained else ():
            if name not in own.answers:
                continue
            answers = (each.answers[name].reshape(-1, len(wanted)) for each in (own, score))
            right = [(each == wanted).double().mean(dim=0).numpy() for each in answers]
            score.gains[name] = [*compare_pairs(*right)]
