"""Precision and recall of the top k predictions, for images with several classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sslengine.meters.targets import as_indicators, as_outputs
from sslengine.meters.top_k import TopKMeter
from sslengine.registry import register_meter


class _AtKMeter(TopKMeter):
    def update(self, output: Tensor | Sequence[Tensor], target: Tensor) -> None:
        outputs = as_outputs(self.name, output, self.output_names)
        rows = as_indicators(self.name, target, outputs[0])
        self.add(torch.stack([self._count(each.detach(), rows) for each in outputs]))

    def _count(self, logits: Tensor, rows: Tensor) -> Tensor:
        """[predictions of known classes for each k, positives, true positives for each k]"""
        predicted = rows.gather(1, self.predictions(logits.float()))
        known = [(predicted[:, :k] >= 0).sum() for k in self.topk_values]
        correct = [(predicted[:, :k] > 0).sum() for k in self.topk_values]
        return torch.stack([*known, (rows > 0).sum(), *correct])

    def measure(self, totals: list[Any]) -> dict[str, Any]:
        count = len(self.topk_values)
        return {
            f"top_{k}": {
                name: 100.0 * row[count + 1 + position] / self.denominator(row, position)
                for name, row in zip(self.output_names, totals, strict=True)
                if self.denominator(row, position)
            }
            for position, k in enumerate(self.topk_values)
        }

    def denominator(self, row: list[float], position: int) -> float:
        """What the number of true positives is divided by."""
        raise NotImplementedError


@register_meter("precision_at_k_list_meter")
class PrecisionAtKListMeter(_AtKMeter):
    """`value()["top_5"]["0"]`: the percentage of the top five predictions that are correct."""

    name = "precision_at_k_list_meter"

    def denominator(self, row: list[float], position: int) -> float:
        return row[position]


@register_meter("recall_at_k_list_meter")
class RecallAtKListMeter(_AtKMeter):
    """`value()["top_5"]["0"]`: the percentage of positives among the top five predictions."""

    name = "recall_at_k_list_meter"

    def denominator(self, row: list[float], position: int) -> float:
        return row[len(self.topk_values)]
