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

    def update(self, output: Tensor | Sequence[Tensor], target: Tensor) -> None:
        rows, most = [], max(self.topk_values)
        for logits in self.list_outputs(output):
            if most > logits.shape[1]:
                raise TrainingError(
                    f"config.METERS.{self.name}.topk_values: {most} of {logits.shape[1]} classes."
                )
            best = logits.detach().float().topk(most, dim=1).indices
            rows.append(torch.stack(self.count(best, logits, target)))
        self.add(torch.stack(rows))

    @abstractmethod
    def count(self, best: Tensor, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many are right at each k, and of how many.

        best: the classes of the largest outputs of each image, best first.
        """

    def sum_at_each(self, found: Tensor) -> Tensor:
        """Sum over the first k columns, for each k."""
        return torch.stack([found[:, :k].sum() for k in self.topk_values])

    def measure(self, totals: list[Any]) -> dict[str, Any]:
        return {
            f"top_{k}": {
                name: 100.0 * right[place] / of[place]
                for name, (right, of) in zip(self.output_names, totals, strict=True)
                if of[place]
            }
            for place, k in enumerate(self.topk_values)
        }


@register_meter("accuracy_list_meter")
class AccuracyListMeter(TopKMeter):
    """`value()["top_1"]["0"]`: the percentage of images whose label is the top prediction.

    Images without a class (a label below 0) are not counted. For an image of several classes
    (integer indicators) any of them is correct. With several outputs and one target there is one
    accuracy per output, named by `meter_names` or numbered.
    """

    name = "accuracy_list_meter"

    def count(self, best: Tensor, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if target.ndim > 1 and target.is_floating_point():
            target = target.argmax(dim=1)  # a mixed image: the class with the largest weight
        if target.ndim == 1:
            hits, counted = best == target.unsqueeze(1), target >= 0
        else:
            positive = self.make_indicators(target, logits) > 0
            hits, counted = positive.gather(1, best), positive.any(dim=1)
        first = hits & (hits.cumsum(dim=1) == 1)
        return self.sum_at_each(first), counted.sum().expand(len(self.topk_values))


@register_meter("precision_at_k_list_meter")
class PrecisionAtKListMeter(TopKMeter):
    """`value()["top_5"]["0"]`: the percentage of the top five predictions that are correct."""

    name = "precision_at_k_list_meter"

    def count(self, best: Tensor, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        predicted = self.make_indicators(target, logits).gather(1, best)
        return self.sum_at_each(predicted > 0), self.sum_at_each(predicted >= 0)


@register_meter("recall_at_k_list_meter")
class RecallAtKListMeter(TopKMeter):
    """`value()["top_5"]["0"]`: the percentage of positives among the top five predictions."""

    name = "recall_at_k_list_meter"

    def count(self, best: Tensor, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.make_indicators(target, logits)
        right = self.sum_at_each(rows.gather(1, best) > 0)
        return right, (rows > 0).sum().expand(len(self.topk_values))
