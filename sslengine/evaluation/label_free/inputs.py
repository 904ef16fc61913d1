"""What metrics are computed from, and all of them at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from sslengine.evaluation.label_free.metric import NEEDS, Measured, metric, prepared
from sslengine.registry import LABEL_FREE

log = logging.getLogger("sslengine")


@dataclass(frozen=True)
class Inputs:
    """Of one checkpoint; `metric.py` has the shapes. missing: why an input is None."""

    features: Tensor
    previous: Tensor | None = None
    views: Tensor | None = None
    projections: Tensor | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


def measure(inputs: Inputs, names: Sequence[str] = ()) -> dict[str, Measured]:
    """Each metric's value; all metrics without names. One that fails does not stop the others."""
    given = {need: getattr(inputs, need) for need in NEEDS}
    # Once: metrics share what they compute from one tensor.
    ready = {need: prepared(need, each) for need, each in given.items() if each is not None}
    names = names or LABEL_FREE.names()
    return {name: _measured(name, ready, inputs.missing) for name in names}


def _measured(name: str, ready: Mapping[str, Tensor], missing: Mapping[str, str]) -> Measured:
    found = metric(name)
    for need in found.needs:
        if need not in ready:
            return Measured(
                math.nan, 0, f"not computed: {missing.get(need, f'there are no {need}')}"
            )
    try:
        return found(*(ready[need] for need in found.needs))
    except Exception as error:  # a metric may be the user's
        log.warning("the metric %s fails", name, exc_info=True)
        return Measured(math.nan, 0, f"{type(error).__name__}: {error}")
