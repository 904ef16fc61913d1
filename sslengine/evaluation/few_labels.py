"""Classification with labels of 1 % and 10 % of the training images: the mean over several draws.

As SimCLR and MSN report it: logistic regression on frozen features, which are standardised by the
drawn images; the penalty is chosen on a part of these. A class keeps its share of the images, and
one image at the least. Which images are drawn depends on the labels and the seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sslengine.data.manifest.few_labels import share_of_each_class
from sslengine.evaluation.draws import Interval, expect_classes
from sslengine.evaluation.features import Rows, rows_at
from sslengine.evaluation.linear import linear_probe, unconverged
from sslengine.evaluation.options import LinearProbeOptions
from sslengine.evaluation.outcome import Outcome, protocol

SHARES = (0.01, 0.1)
DRAWS = 3


@protocol("Few labels")
def few_labels(
    train: Rows,
    labels: Tensor,
    test: Rows,
    test_labels: Tensor,
    shares: Sequence[float] = SHARES,
    draws: int = DRAWS,
    options: LinearProbeOptions | None = None,
    groups: Tensor | None = None,
) -> Outcome:
    counts = expect_classes(labels)
    intervals: dict[str, Interval] = {}
    details: dict[str, Any] = {"draws": draws, "images": {}, "penalties": {}, "chosen_on": {}}
    notes = []
    for share in shares:
        found, name = [], name_of(share)
        for seed in range(draws):
            rows = share_of_each_class(labels, share, seed)
            some = rows_at(train, rows), labels[rows.to(labels.device)]
            of_some = None if groups is None else groups[rows.to(groups.device)]
            probe = linear_probe(*some, test, test_labels, options, groups=of_some, warns=False)
            found.append(probe)
        intervals[name] = Interval.of([each.test_accuracy for each in found])
        details["images"][name] = len(rows)
        details["penalties"][name] = [each.penalty for each in found]
        details["chosen_on"][name] = found[0].chosen_on
        said = dict.fromkeys(text for each in found for text in each.notes)
        notes += [f"{name}: {text}" for text in said]
        if not all(each.converged for each in found):
            notes.append(f"{name}: {unconverged(options or LinearProbeOptions())}")
        if raised := int((share * counts < 0.5).sum()):
            notes.append(
                f"{name}: {raised} of {len(counts)} classes have so few images that the share is "
                f"raised to one image"
            )
    details["intervals"] = {name: each.half for name, each in intervals.items()}
    metrics = {name: each.mean for name, each in intervals.items()}
    return Outcome(metrics, tuple(notes), details, seeds=tuple(range(draws)))


def name_of(share: float) -> str:
    return f"{100 * share:g} %"
