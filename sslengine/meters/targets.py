"""Outputs and targets in the form that meters use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sslengine.errors import TrainingError

UNKNOWN = -1


def output_names(num_meters: int, meter_names: Sequence[str]) -> list[str]:
    return [str(name) for name in meter_names] or [str(index) for index in range(num_meters)]


def as_outputs(meter: str, output: Tensor | Sequence[Tensor], names: Sequence[str]) -> list[Tensor]:
    """A list of outputs, one for each name."""
    outputs = [output] if isinstance(output, Tensor) else list(output)
    if len(outputs) != len(names):
        raise TrainingError(
            f"{meter} expects {len(names)} outputs, but the model has {len(outputs)}: set "
            f"config.METERS.{meter}.num_meters."
        )
    return outputs


def as_indicators(meter: str, target: Tensor, output: Tensor) -> Tensor:
    """Images x classes: 1, 0, or UNKNOWN. target: class numbers, indicators, or probabilities of
    mixed images; a probability above 0.5 counts as 1."""
    if target.ndim == 1:
        classes = torch.arange(output.shape[1], device=target.device)
        rows = (target.unsqueeze(1) == classes).to(torch.int8)
        return rows.masked_fill((target < 0).unsqueeze(1), UNKNOWN)
    if target.shape != output.shape:
        raise TrainingError(
            f"{meter}: the labels have the shape {tuple(target.shape)} and the outputs "
            f"{tuple(output.shape)}: expected an indicator for each image and class."
        )
    return (target > 0.5).to(torch.int8).masked_fill(target < 0, UNKNOWN)


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
