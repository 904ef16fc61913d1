"""The base class of meters: totals on the device, one reduction at the end of a phase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.collectives import sum_in_place
from sslengine.errors import TrainingError
from sslengine.meters import MetersOptions
from sslengine.precision import widest
from sslengine.registry import METERS, component_key

UNKNOWN = -1


class Meter(ABC):
    """Accumulate totals, which are summed over steps and over ranks.

    `update` is called in every step, so it must not synchronise with the device.
    """

    name: str

    def __init__(self, num_meters: int = 1, meter_names: Sequence[str] = ()) -> None:
        # Of the model's outputs, each of which is measured.
        self.output_names = [*map(str, meter_names or range(num_meters))]
        # The sums of this rank. None before the first update, which decides the device.
        self.totals: Tensor | None = None

    @abstractmethod
    def update(self, output: Any, target: Tensor) -> None:
        """Add one batch."""

    @abstractmethod
    def measure(self, totals: list[float]) -> dict[str, Any]:
        """Compute the value, from totals over all ranks."""

    def names(self) -> list[str]:
        """Return the dotted names of the numbers in `value`; `AP.*`: all that begin with `AP.`"""
        return ["*"]

    def add(self, batch: Tensor) -> None:
        """Add one batch's sums. float64 represents whole numbers up to 2^53 exactly."""
        if self.totals is None:
            self.totals = batch.to(widest(batch.device))
        else:
            self.totals = self.totals + batch

    def value(self) -> dict[str, Any]:
        """Return the value over all ranks. Collective; one host synchronisation."""
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

    def list_outputs(self, output: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Return a list of outputs, one for each name."""
        outputs = [output] if isinstance(output, Tensor) else list(output)
        if len(outputs) != len(self.output_names):
            raise TrainingError(
                f"config.METERS.{self.name}.num_meters: the model has {len(outputs)} outputs."
            )
        return outputs

    def make_indicators(self, target: Tensor, output: Tensor) -> Tensor:
        """Return 1, 0, or UNKNOWN for images x classes.

        target: class numbers, indicators, or probabilities of mixed images; above 0.5 counts as 1.
        """
        if target.ndim == 1:
            classes = torch.arange(output.shape[1], device=target.device)
            rows = (target.unsqueeze(1) == classes).to(torch.int8)
            return rows.masked_fill((target < 0).unsqueeze(1), UNKNOWN)
        if target.shape != output.shape:
            raise TrainingError(
                f"{self.name}: labels {tuple(target.shape)} do not fit outputs {(*output.shape,)}."
            )
        return (target > 0.5).to(torch.int8).masked_fill(target < 0, UNKNOWN)


def build_meters(options: MetersOptions) -> list[Meter]:
    """Build the meters of `config.METERS`."""
    meters = []
    for name in options.names:
        given = getattr(options, component_key(name), {})
        meter: Any = METERS.get(name, "config.METERS.names")
        meters.append(meter(**given) if isinstance(given, Mapping) else meter(given))
    return meters


def present_classes(labels: Any) -> Tensor:
    """Return the classes in a column of class numbers or in rows of indicators."""
    known = torch.as_tensor(labels)
    found: Tensor = known if known.ndim == 1 else (known > 0).any(dim=0).nonzero()
    return found.unique()  # type: ignore[no-untyped-call,no-any-return]


def mask_absent(output: Any, present: Tensor) -> Any:
    """Give classes that are not in `present` the least number as their score.

    VISSL has -inf, times which an indicator of 0 makes the loss NaN.
    """
    if not isinstance(output, Tensor):
        return [mask_absent(each, present) for each in output]
    classes = torch.arange(output.shape[-1], device=output.device)
    absent = torch.isin(classes, present.to(output.device), invert=True)
    return output.masked_fill(absent, torch.finfo(output.dtype).min)
