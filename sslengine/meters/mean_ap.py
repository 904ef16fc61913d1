"""Mean average precision, for images with several classes.

All images are ranked by their score for the class. With P(i) the share of the class's images among
the first i, and M the number of the class's images:

    AP = 1 / M  *  sum over its images, at rank i, of P(i)

Images of equal score all get the last of their ranks. `interpolated`, as in VOC since 2010 and in
VISSL: P(i) is replaced by the maximum of P(j) over j >= i. Without it the result is scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.collectives import gather
from sslengine.errors import TrainingError
from sslengine.meters.base import Meter
from sslengine.registry import register_meter

# Scores that are sorted at a time.
BLOCK = 2**25


def average_precision(scores: Tensor, targets: Tensor, interpolated: bool = True) -> Tensor:
    """Compute it from 0 to 1 for each class, in float64.

    scores, targets: images x classes. targets: 1, 0, or below 0 if unknown: then the image is
    ignored for the class. NaN: the class has no image, or a score is NaN.
    """
    if not len(scores):
        return scores.new_full(scores.shape[1:], float("nan"), dtype=torch.float64)
    columns = max(1, BLOCK // len(scores))
    pairs = zip(scores.split(columns, dim=1), targets.split(columns, dim=1), strict=True)
    return torch.cat([_measure_columns(some, wanted, interpolated) for some, wanted in pairs])


def _measure_columns(scores: Tensor, targets: Tensor, interpolated: bool) -> Tensor:
    ranked, order = scores.sort(dim=0, descending=True)
    wanted = targets.gather(0, order)
    hits, known = (wanted > 0).double(), (wanted >= 0).double()
    precision = hits.cumsum(0) / known.cumsum(0).clamp(min=1)
    precision = precision.gather(0, _last_of_equal(ranked))
    if interpolated:
        precision = precision.flip(0).cummax(0).values.flip(0)
    found = (precision * hits).sum(0) / hits.sum(0)
    return found.masked_fill(scores.isnan().any(0), float("nan"))


def _last_of_equal(ranked: Tensor) -> Tensor:
    """Return for each rank the last one that has the same score."""
    ranks = torch.arange(len(ranked), device=ranked.device).unsqueeze(1).expand(ranked.shape)
    last = torch.ones_like(ranked, dtype=torch.bool)
    last[:-1] = ranked[:-1] != ranked[1:]
    return ranks.masked_fill(~last, len(ranked)).flip(0).cummin(0).values.flip(0)


@register_meter("mean_ap_list_meter")
class MeanAPListMeter(Meter):
    """`value()["mAP"]["0"]`, and `value()["AP"]["0"]` by class number.

    Both leave out a class without images. The scores of all images of a phase stay on the device:
    5 bytes for each image, class and output.
    """

    name = "mean_ap_list_meter"

    def __init__(
        self,
        num_classes: int | None = None,
        num_meters: int = 1,
        meter_names: Sequence[str] = (),
        interpolated: bool = True,
        max_cpu_capacity: int = -1,
    ) -> None:
        """
        num_classes: the expected number of classes in an output; null: any.
        num_meters: the number of the model's outputs, each of which is measured.
        meter_names: names of the outputs; without them they are numbered.
        interpolated: as in VISSL and VOC; false: scikit-learn's average precision.
        max_cpu_capacity: the largest number of images of a phase on each rank (more are an error);
            -1: any number.
        """
        super().__init__(num_meters, meter_names)
        self.interpolated, self.num_classes = interpolated, num_classes
        self.capacity = max_cpu_capacity
        self.reset()

    def names(self) -> list[str]:
        return [f"mAP.{name}" for name in self.output_names] + ["AP.*"]

    def update(self, output: Tensor | Sequence[Tensor], target: Tensor) -> None:
        outputs = self.list_outputs(output)
        images, width = outputs[0].shape
        if self.num_classes not in (None, width):
            raise TrainingError(f"config.METERS.{self.name}.num_classes: outputs have {width}.")
        if 0 <= self.capacity < sum(map(len, self._scores)) + images:
            raise TrainingError(
                f"config.METERS.{self.name}.max_cpu_capacity: a phase has more than "
                f"{self.capacity} images; -1: any number."
            )
        self._scores.append(torch.stack([each.detach().float() for each in outputs], dim=1))
        self._targets.append(self.make_indicators(target, outputs[0]))

    @torch.no_grad()
    def value(self) -> dict[str, Any]:
        """Gather the scores of all ranks on each. Collective."""
        if not self._scores:
            return {}
        scores, targets = (gather(torch.cat(own)).rows for own in (self._scores, self._targets))
        return self.measure([*scores.unbind(1), targets])

    def measure(self, totals: list[Any]) -> dict[str, Any]:
        """Name the average precision of each class of each output, and their means."""
        means: dict[str, float] = {}
        classes: dict[str, dict[str, float]] = {}
        *outputs, targets = totals
        for name, scores in zip(self.output_names, outputs, strict=True):
            row = average_precision(scores, targets, self.interpolated).tolist()
            known = {str(number): 100.0 * each for number, each in enumerate(row) if each == each}
            classes[name] = known
            means |= {name: sum(known.values()) / len(known)} if known else {}
        return {"mAP": means, "AP": classes}

    def reset(self) -> None:
        self._scores: list[Tensor] = []  # images x outputs x classes of each step
        self._targets: list[Tensor] = []

    def state_dict(self) -> dict[str, Any]:
        return {"scores": [*self._scores], "targets": [*self._targets]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scores, self._targets = [*state["scores"]], [*state["targets"]]

    def load_sum(self, states: list[dict[str, Any]]) -> None:
        self._scores = [each for state in states for each in state["scores"]]
        self._targets = [each for state in states for each in state["targets"]]
