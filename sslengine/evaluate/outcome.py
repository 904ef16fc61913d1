"""What a protocol found, and what it could not do.

    @protocol("retrieval")
    def retrieval(features, labels) -> Outcome: ...

A protocol raises DataError if the features or labels do not allow it. Its caller gets an Outcome
without metrics, whose note has the reason: other protocols still run.

VERSIONS are named by every row of a report. A version is raised when the same features would get
another number: compare rows of one version alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.options import PROTOCOLS

log = logging.getLogger("sslengine")

Given = ParamSpec("Given")

_ALL = (
    "knn", "linear", "label_free", *PROTOCOLS,
    "linear_sweep", "attentive_sweep", "attentive_block_sweep", "attentive_blocks_sweep",
    "finetune",
)  # fmt: skip
# What fits or chooses a linear probe.
_BY_PROBE = (
    "linear", "few_shot_linear", "few_labels", "calibration", "per_class", "domains", "other_sets",
    "corruptions",
)  # fmt: skip
VERSIONS: Mapping[str, int] = {
    **dict.fromkeys(_ALL, 1),
    # 2: penalties half as far from each other, chosen on whole groups. 3: all of them are tried.
    **dict.fromkeys(_BY_PROBE, 3),
    "retrieval": 2,  # images of several classes of which some are unknown take part
    "dense": 2,  # of the classes that the masks show
    # 2: channels are dropped before the normalisation. 3: of the classes that the masks show.
    "segmentation": 3,
}


@dataclass(frozen=True)
class Outcome:
    # In percent, unless the protocol says otherwise. Empty: it could not be computed.
    metrics: Mapping[str, float]
    notes: tuple[str, ...] = ()
    # How it was computed, for the report: numbers of images, chosen hyper-parameters.
    details: Mapping[str, Any] = field(default_factory=dict)
    # For separate files: too long for a report.
    tables: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    # Of the draws that the metrics are the means over.
    seeds: tuple[int, ...] = (0,)


def protocol(name: str) -> Callable[[Callable[Given, Outcome]], Callable[Given, Outcome]]:
    def add(compute: Callable[Given, Outcome]) -> Callable[Given, Outcome]:
        @wraps(compute)
        def guarded(*args: Given.args, **kwargs: Given.kwargs) -> Outcome:
            try:
                return compute(*args, **kwargs)
            except DataError as reason:
                log.warning("%s: %s", name, reason)
                said = str(reason).removeprefix(f"{name}: ")
                return Outcome({}, (f"{name}: {said}",))

        return guarded

    return add


def note_choice(
    chosen: Sequence[float], grid: Sequence[float], answers: Tensor | None, what: str = "penalty"
) -> tuple[str, ...]:
    """Note what makes a linear classifier's score doubtful: an end of the grid, one answer for all.

    chosen: from the grid, by held-out images; empty: nothing was. answers: how often each is given.
    """
    least, most = min(grid, default=0.0), max(grid, default=0.0)
    ends = sorted({*chosen} & {least, most}) if least < most else ()
    notes = tuple(
        f"{what} {each:g} is an end of those tried, {least:g} to {most:g}" for each in ends
    )
    if answers is not None and (total := int(answers.sum())) > 1 and int(answers.max()) == total:
        notes += (f"all {total} answers are the same",)
    return notes
