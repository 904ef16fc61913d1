"""Top-k accuracy in percent, for one output or for a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sslengine.meters.targets import as_indicators, as_outputs
from sslengine.meters.top_k import TopKMeter
from sslengine.registry import register_meter


@register_meter("accuracy_list_meter")
class AccuracyListMeter(TopKMeter):
    """`value()["top_1"]["0"]`: the percentage of images whose label is the top prediction.

    Images without a class (a label below 0) are not counted. For an image of several classes
    (integer indicators) any of them is correct. With several outputs and one target there is one
    accuracy per output, named by `meter_names` or numbered.
    """

    name = "accuracy_list_meter"

    def update(self, output: Tensor | Sequence[Tensor], target: Tensor) -> None:
        outputs = as_outputs(self.name, output, self.output_names)
        if target.ndim > 1 and target.is_floating_point():
            target = target.argmax(dim=1)  # a mixed image: the class with the largest weight
        rows = [self._count(each.detach(), target) for each in outputs]
        self.add(torch.stack(rows))

    def _count(self, logits: Tensor, target: Tensor) -> Tensor:
        """[images, correct at k for each k], as a tensor on the device."""
        predictions = self.predictions(logits)
        if target.ndim == 1:
            hits, counted = predictions == target.unsqueeze(1), target >= 0
        else:
            positive = as_indicators(self.name, target, logits) > 0
            hits, counted = positive.gather(1, predictions), positive.any(dim=1)
        correct = [hits[:, :k].any(dim=1).sum() for k in self.topk_values]
        return torch.stack([counted.sum(), *correct])

    def measure(self, totals: list[Any]) -> dict[str, Any]:
        return {
            f"top_{k}": {
                name: 100.0 * row[1 + position] / row[0]
                for name, row in zip(self.output_names, totals, strict=True)
                if row[0]
            }
            for position, k in enumerate(self.topk_values)
        }
