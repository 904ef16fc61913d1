"""Accuracy, precision and recall of the top k predictions, for one output or for several."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sslengine.errors import TrainingError
from sslengine.meters.base import Meter
from sslengine.registry import register_meter


class TopKMeter(Meter):
    """Base of meters of the top k predictions of one or several outputs."""

    def __init__(
        self,
        num_meters: int = 1,
        topk_values: Sequence[int] = (1,),
        meter_names: Sequence[str] = (),
    ) -> None:
        """
        num_meters: the number of the model's outputs, each of which is measured.
        topk_values: each k of top-k.
        meter_names: names of the outputs; without them they are numbered.
        """
        super().__init__(num_meters, meter_names)
        self.topk_values = list(topk_values)

    def names(self) -> list[str]:
        return [f"top_{k}.{name}" for k in self.topk_values for name in self.output_names]

    @abstractmethod
    def divisor(self, place: int) -> int:
        """Return where in the totals is what the number of each k, at their end, is divided by."""

    def measure(self, totals: list[Any]) -> dict[str, Any]:
        count = len(self.topk_values)
        return {
            f"top_{k}": {
                name: 100.0 * row[place - count] / divisor
                for name, row in zip(self.output_names, totals, strict=True)
                if (divisor := row[self.divisor(place)])
            }
            for place, k in enumerate(self.topk_values)
        }

    def predictions(self, logits: Tensor) -> Tensor:
        """Return the classes of the largest outputs, best first, for the largest k."""
        largest = max(self.topk_values)
        if largest > logits.shape[1]:
            raise TrainingError(
                f"{self.name}.topk_values: top {largest} of {logits.shape[1]} classes."
            )
        return logits.topk(largest, dim=1).indices


@register_meter("accuracy_list_meter")
class AccuracyListMeter(TopKMeter):
    """`value()["top_1"]["0"]`: the percentage of images whose label is the top prediction.

    Images without a class (a label below 0) are not counted. For an image of several classes
    (integer indicators) any of them is correct. With several outputs and one target there is one
    accuracy per output, named by `meter_names` or numbered.
    """

    name = "accuracy_list_meter"

    def update(self, output: Tensor | Sequence[Tensor], target: Tensor) -> None:
        outputs = self.list_outputs(output)
        if target.ndim > 1 and target.is_floating_point():
            target = target.argmax(dim=1)  # a mixed image: the class with the largest weight
        rows = [self._count(each.detach(), target) for each in outputs]
        self.add(torch.stack(rows))

    def _count(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return [images, correct at k for each k], on the device."""
        predictions = self.predictions(logits)
        if target.ndim == 1:
            hits, counted = predictions == target.unsqueeze(1), target >= 0
        else:
            positive = self.make_indicators(target, logits) > 0
            hits, counted = positive.gather(1, predictions), positive.any(dim=1)
        correct = [hits[:, :k].any(dim=1).sum() for k in self.topk_values]
        return torch.stack([counted.sum(), *correct])

    def divisor(self, place: int) -> int:
        return 0


class _AtKMeter(TopKMeter):
    """Base of shares of true positives, for images of several classes."""

    def update(self, output: Tensor | Sequence[Tensor], target: Tensor) -> None:
        outputs = self.list_outputs(output)
        rows = self.make_indicators(target, outputs[0])
        self.add(torch.stack([self._count(each.detach(), rows) for each in outputs]))

    def _count(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return [predictions of known classes at each k, positives, true positives at each k]."""
        predicted = rows.gather(1, self.predictions(logits.float()))
        known = [(predicted[:, :k] >= 0).sum() for k in self.topk_values]
        correct = [(predicted[:, :k] > 0).sum() for k in self.topk_values]
        return torch.stack([*known, (rows > 0).sum(), *correct])


@register_meter("precision_at_k_list_meter")
class PrecisionAtKListMeter(_AtKMeter):
    """`value()["top_5"]["0"]`: the percentage of the top five predictions that are correct."""

    name = "precision_at_k_list_meter"

    def divisor(self, place: int) -> int:
        return place


@register_meter("recall_at_k_list_meter")
class RecallAtKListMeter(_AtKMeter):
    """`value()["top_5"]["0"]`: the percentage of positives among the top five predictions."""

    name = "recall_at_k_list_meter"

    def divisor(self, place: int) -> int:
        return len(self.topk_values)
