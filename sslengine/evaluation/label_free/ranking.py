"""One table, metric by checkpoint: values, each metric's order, and its agreement with labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluation.knn import knn_accuracy
from sslengine.evaluation.label_free.agreement import Interval, agreement, kendall, spearman
from sslengine.evaluation.label_free.clid import LEAST_CHECKPOINTS, clid_over
from sslengine.evaluation.label_free.metric import Best, Measured, goodness, metric
from sslengine.evaluation.linear import linear_probe

OVER = "clid_over"  # which needs all checkpoints
NEIGHBOURS = 20
SCORE, LINEAR = f"knn@{NEIGHBOURS}", "linear"


@dataclass(frozen=True)
class Row:
    name: str
    best: Best | None
    values: list[Measured]  # of each checkpoint
    # Of the goodness, in the same direction for all metrics, with the labels' score.
    spearman: Interval | None = None
    kendall: Interval | None = None
    # The same with the accuracy of a linear probe.
    linear: Interval | None = None

    @property
    def order(self) -> list[int]:
        """The checkpoints, the best first; those without a value are left out."""
        if self.best is None:
            return []
        defined = [number for number, each in enumerate(self.values) if each.defined]
        return sorted(defined, key=lambda each: -goodness(self.best, self.values[each].value))


def ranked(
    found: Sequence[Mapping[str, Measured]],
    scores: Sequence[Measured],
    probes: Sequence[Measured] = (),
) -> list[Row]:
    """found: of each checkpoint, by metric. scores, probes: by labels; their rows come first."""
    rows = [Row(name, metric(name).best, [each[name] for each in found]) for name in found[0]]
    if "clid" in found[0]:
        at = [row.name for row in rows].index("clid") + 1
        rows.insert(at, Row(OVER, "high", _over([each["clid"] for each in found])))
    score, probe = Row(SCORE, "high", list(scores)), Row(LINEAR, "high", list(probes))
    rows = [*([probe] if probes else []), *rows]
    return [score, *(_compared(row, score, probe) for row in rows)]


def score_of(features: Tensor, labels: Tensor | None) -> Measured:
    """kNN, in percent: a random half of the images finds its neighbours in the other half."""
    return _on_halves(features, labels, _neighbours)


def probe_of(features: Tensor, labels: Tensor | None) -> Measured:
    """A linear probe, in percent, fitted on one half of the images and scored on the other."""
    return _on_halves(features, labels, lambda *sets: linear_probe(*sets).test_accuracy)


def _neighbours(train: Tensor, labels: Tensor, test: Tensor, wanted: Tensor) -> float:
    return knn_accuracy(train, labels, test, wanted, k=min(NEIGHBOURS, len(train)))


def _on_halves(features: Tensor, labels: Tensor | None, accuracy: Callable[..., float]) -> Measured:
    why = _why_no_score(labels)
    if labels is None or why:
        return Measured(math.nan, 0, why)
    known = labels >= 0
    features, labels = features[known], labels[known]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order.chunk(2)
    try:
        value = accuracy(features[train], labels[train], features[test], labels[test])
    except DataError as error:
        return Measured(math.nan, len(test), str(error))
    return Measured(value, len(test))


def _why_no_score(labels: Tensor | None) -> str:
    if labels is None:
        return "not computed: the images have no labels"
    if labels.ndim > 1:
        return "not computed: images have several classes"
    if len(labels[labels >= 0].unique()) < 2:
        return "not computed: there are labels of fewer than two classes"
    return ""


def _over(found: Sequence[Measured]) -> list[Measured]:
    defined = [each for each in found if each.defined]
    if len(defined) < LEAST_CHECKPOINTS:
        why = f"not computed: it compares {LEAST_CHECKPOINTS} checkpoints or more"
        return [Measured(math.nan, 0, why)] * len(found)
    parts = [(each.details["learnability"], each.details["dimension"]) for each in defined]
    values = iter(clid_over(parts))
    return [replace(each, value=next(values)) if each.defined else each for each in found]


def _compared(row: Row, score: Row, probe: Row) -> Row:
    good = [goodness(row.best, each.value) for each in row.values]
    wanted = [each.value for each in score.values]
    rho, tau = (agreement(correlation, good, wanted) for correlation in (spearman, kendall))
    other = probe.values and row is not probe
    linear = agreement(spearman, good, [each.value for each in probe.values]) if other else None
    return Row(row.name, row.best, row.values, rho, tau, linear)
