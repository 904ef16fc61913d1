"""`domains` of EVALUATE.PROTOCOLS: is a classifier right in a domain that it was not fitted on?

A domain is another camera, hospital, style: a value of a column of the images' table.

Each domain is left out once: the linear probe is fitted to the training images of the others, and
answers the test images of this one. Of more than FOLDS domains several are left out together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold
from torch import Tensor

from sslengine.engines.features import StoredSplit
from sslengine.engines.on_images import Found, Judged
from sslengine.errors import DataError
from sslengine.evaluate.answers import PerClass, expect_probe
from sslengine.evaluate.features import Chosen, Rows
from sslengine.evaluate.linear import linear_probe
from sslengine.evaluate.options import LinearProbeOptions
from sslengine.evaluate.outcome import Outcome, protocol
from sslengine.registry import PROTOCOLS

FOLDS = 10
CHOSEN_ON = "held-out training images of the domains that are fitted"

Domains = NDArray[np.str_]


@protocol("Domains")
def leave_one_domain_out(
    train: Rows, labels: Tensor, domains: Sequence[Any],
    test: Rows, test_labels: Tensor, test_domains: Sequence[Any],
    options: LinearProbeOptions | None = None, **how: Any,
) -> Outcome:  # fmt: skip
    """domains: one for each image. how: of linear_probe."""
    own, other = (np.array([str(each) for each in some]) for some in (domains, test_domains))
    answers, penalties = torch.empty(len(other), dtype=torch.long), []
    notes: dict[str, None] = {}
    for left_out in _folds(other):
        used, asked = (torch.from_numpy(np.flatnonzero(each))
                       for each in (~np.isin(own, left_out), np.isin(other, left_out)))  # fmt: skip
        if not len(used):
            raise DataError(f"all training images are of the domain {str(left_out[0])!r}.")
        rows, tested = Chosen(train, used), Chosen(test, asked)
        probe = linear_probe(rows, labels[used], tested, test_labels[asked], options, **how)
        answers[asked] = expect_probe(probe)[1].answers(tested)
        penalties.append(probe.penalty)
        notes |= dict.fromkeys(probe.notes)
    by_domain = {str(name): PerClass.count(answers[other == name], test_labels[other == name])
                 for name in np.unique(other)}  # fmt: skip
    details = {
        "penalties": penalties, "chosen_on": CHOSEN_ON,
        "domains": {name: {"images": int(each.images.sum()), **each.metrics}
                    for name, each in by_domain.items()},
    }  # fmt: skip
    whole = PerClass.count(answers, test_labels).metrics
    accuracies = [each.metrics["accuracy"] for each in by_domain.values()]
    return Outcome({
        "accuracy": whole["accuracy"], "macro F1": whole["macro F1"],
        "mean of domains": float(np.mean(accuracies)), "worst domain": min(accuracies),
    }, tuple(notes), details)  # fmt: skip


def _folds(domains: Domains) -> Iterator[Domains]:
    """The domains that are left out together."""
    names = np.unique(domains)
    if len(names) <= FOLDS:
        yield from (names[place : place + 1] for place in range(len(names)))
        return
    split: Any = GroupKFold(n_splits=FOLDS)  # type: ignore[no-untyped-call]
    for _, rows in split.split(domains, groups=domains):
        yield np.unique(domains[rows])


WHERE = "config.EVALUATE.DOMAIN_COLUMN"


@PROTOCOLS.register("domains")
def judge_domains(judged: Judged) -> Found:
    """Judge domains, without labelled test images those of TRAIN. Collective."""
    column = judged.EVALUATE.DOMAIN_COLUMN
    if not column:
        raise DataError(f"{WHERE} names no column of the images' table.")
    if all(each.labels is None for each in judged.sets):
        raise DataError("the images have no labels.")
    columns = {split: _column(each, column) for split, each in judged.splits.items()}
    found: Found = {}
    for each in judged.sets:
        assert each.labels is not None
        train = each.train, each.labels, _choose(columns["TRAIN"], each.numbers)
        test = train
        if each.test is not None and each.wanted is not None:
            test = each.test, each.wanted, _choose(columns["TEST"], each.tested)
        found[each.features, each.layer] = leave_one_domain_out(
            *train, *test, judged.probe, device=judged.run.device, over_ranks=True
        )
    return found


def _column(split: StoredSplit, name: str) -> list[Any]:
    """Read the column of the dataset's images."""
    values = split.dataset.sources[0].column(name, WHERE)
    return [values[int(row)] for row in split.dataset.rows]


def _choose(column: Sequence[Any], numbers: Tensor | None) -> list[Any]:
    assert numbers is not None
    return [column[number] for number in numbers.tolist()]
