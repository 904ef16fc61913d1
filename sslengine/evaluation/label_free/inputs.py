"""What metrics are computed from, and all of them at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from sslengine.evaluation.label_free.metric import Measured, metric
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
    return {name: _measured(name, inputs) for name in names or LABEL_FREE.names()}


def _measured(name: str, inputs: Inputs) -> Measured:
    found = metric(name)
    given = [getattr(inputs, each) for each in found.needs]
    for need, each in zip(found.needs, given, strict=True):
        if each is None:
            why = inputs.missing.get(need, f"there are no {need}")
            return Measured(math.nan, 0, f"not computed: {why}")
    try:
        return found(*given)
    except Exception as error:  # a metric may be the user's
        log.warning("the metric %s fails", name, exc_info=True)
        return Measured(math.nan, 0, f"{type(error).__name__}: {error}")
