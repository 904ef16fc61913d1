"""A metric without labels: a function of feature tensors, and what a user has to know of it.

    @register_metric("mean_norm", best="high")
    def mean_norm(features: Tensor) -> float:
        return features.norm(dim=1).mean().item()

The names of the arguments say what the metric needs:

    features     (N, D)     of the trunk, one row for each image, without augmentation
    previous     (N, D')    the same images' features by the checkpoint before
    views        (n, q, D)  of the trunk, of q augmented views of each of n images
    projections  (n, q, P)  of the same views, after the projection head

They arrive in float64, at most ROWS rows, all finite; where the value is not defined, the function
raises `Undefined`. `mean_norm(features)` is then a `Measured`: NaN with the reason, no exception.

What metrics are computed from, and all of them at once.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Literal

import torch
from torch import Tensor

from sslengine.evaluate.features import rows_at
from sslengine.registry import LABEL_FREE

# RankMe's number of rows. Measures of rank grow with the number of rows: compare equal ones.
ROWS = 25_600
NEEDS = ("features", "previous", "views", "projections")

# Which value its authors expect of good features. None: they do not agree, or it does not say.
Best = Literal["high", "low", "near 1"]
Compute = Callable[..., float | tuple[float, Mapping[str, float]]]


class Undefined(Exception):
    """The metric has no value for these features; the text says why."""


@dataclass(frozen=True)
class Measured:
    value: float  # NaN: undefined, or not computed
    n: int = 0  # rows it was computed from
    why: str = ""  # it is NaN
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def defined(self) -> bool:
        return not math.isnan(self.value)

    def as_json(self) -> dict[str, Any]:
        value = self.value if self.defined else None
        return {"value": value, "n": self.n, "why": self.why, "details": dict(self.details)}


class Metric:
    def __init__(self, name: str, compute: Compute, best: Best | None) -> None:
        update_wrapper(self, compute)
        self.name, self.compute, self.best = name, compute, best
        self.needs = tuple(inspect.signature(compute).parameters)

    @torch.no_grad()
    def __call__(self, *given: Tensor) -> Measured:
        n = 0
        try:
            rows = [prepared(each) for each in given]
            n = min(map(len, rows))
            for need, each in zip(self.needs, rows, strict=True):
                _expect_finite(need, each)
            if LABEL_FREE.is_users(self.name):
                rows = [each.clone() for each in rows]  # it may change them in place
            found = self.compute(*rows)
        except Undefined as reason:
            return Measured(math.nan, n, str(reason))
        value, details = found if isinstance(found, tuple) else (found, {})
        value = float(value)
        if not math.isfinite(value):
            return Measured(math.nan, n, f"the result is {value:g}", details)
        return Measured(value, n, details=details)


def goodness(best: Best | None, value: float) -> float:
    """Higher is better; without `best` the value itself."""
    if best == "near 1":
        return -abs(value - 1)
    return -value if best == "low" else value


def register_metric(name: str, best: Best | None = None) -> Callable[[Compute], Metric]:
    def add(compute: Compute) -> Metric:
        made = Metric(name, compute, best)
        LABEL_FREE.register(name)(made)
        return made

    return add


def prepared(rows: Tensor) -> Tensor:
    """Prepare rows: float64; a sub-sample of ROWS, the same for all inputs of a length."""
    return (rows_at(rows, sub_sample(len(rows))) if len(rows) > ROWS else rows).double()


def sub_sample(count: int) -> Tensor:
    """Draw at most ROWS numbers of `count` rows, ascending."""
    if count <= ROWS:
        return torch.arange(count)
    draw = torch.Generator().manual_seed(0)
    return torch.randperm(count, generator=draw)[:ROWS].sort().values


def _expect_finite(need: str, rows: Tensor) -> None:
    if len(rows) < 2:
        raise Undefined(f"it needs 2 rows or more, there is {len(rows)}")
    if not rows.isfinite().all():
        raise Undefined(f"some {need} are NaN or infinite")


def metric(name: str) -> Metric:
    found: Metric = LABEL_FREE.get(name)
    return found


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
    ready = {need: prepared(each) for need, each in given.items() if each is not None}
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
