"""The base class of meters of the top k predictions of one or several outputs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sslengine.errors import TrainingError
from sslengine.meters.base import Meter
from sslengine.meters.targets import output_names


class TopKMeter(Meter):
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
        super().__init__()
        self.topk_values = list(topk_values)
        self.output_names = output_names(num_meters, meter_names)

    def names(self) -> list[str]:
        return [f"top_{k}.{name}" for k in self.topk_values for name in self.output_names]

    def predictions(self, logits: Tensor) -> Tensor:
        """The classes of the largest outputs, best first, for the largest k."""
        largest = max(self.topk_values)
        if largest > logits.shape[1]:
            raise TrainingError(
                f"{self.name}.topk_values: top {largest} of {logits.shape[1]} classes."
            )
        return logits.topk(largest, dim=1).indices
