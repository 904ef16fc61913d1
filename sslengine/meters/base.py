"""The base class of meters: totals on the device, one reduction at the end of a phase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.collectives import sum_in_place
from sslengine.meters.options import MetersOptions
from sslengine.precision import widest
from sslengine.registry import METERS, component_key


class Meter(ABC):
    """Accumulate totals, which are summed over steps and over ranks.

    `update` is called in every step, so it must not synchronise with the device.
    """

    name: str

    def __init__(self) -> None:
        # The sums of this rank. None before the first update, which decides the device.
        self.totals: Tensor | None = None

    @abstractmethod
    def update(self, output: Any, target: Tensor) -> None:
        """Add one batch."""

    @abstractmethod
    def measure(self, totals: list[float]) -> dict[str, Any]:
        """The value, from totals over all ranks."""

    def names(self) -> list[str]:
        """The dotted names of the numbers in `value`; `AP.*`: all that begin with `AP.`"""
        return ["*"]

    def add(self, batch: Tensor) -> None:
        """Add one batch's sums. float64 represents whole numbers up to 2^53 exactly."""
        if self.totals is None:
            self.totals = batch.to(widest(batch.device))
        else:
            self.totals = self.totals + batch

    def value(self) -> dict[str, Any]:
        """The value over all ranks. Collective; one host synchronisation."""
        if self.totals is None:
            return {}
        return self.measure(sum_in_place(self.totals.clone()).tolist())

    def reset(self) -> None:
        self.totals = None

    def state_dict(self) -> dict[str, Any]:
        return {"totals": self.totals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.totals = state["totals"]

    def load_sum(self, states: list[dict[str, Any]]) -> None:
        """Restore the sum of the states of several ranks."""
        counted = [state["totals"] for state in states if state["totals"] is not None]
        self.totals = torch.stack(counted).sum(dim=0) if counted else None


def build_meters(options: MetersOptions) -> list[Meter]:
    """Build the meters of `config.METERS`."""
    meters = []
    for name in options.names:
        given = getattr(options, component_key(name), {})
        meter: Any = METERS.get(name, "config.METERS.names")
        meters.append(meter(**given) if isinstance(given, Mapping) else meter(given))
    return meters
