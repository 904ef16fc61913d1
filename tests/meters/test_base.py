from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sslengine.meters.base import Meter


class _Mean(Meter):
    name = "mean"

    def update(self, output: Any, target: Tensor) -> None:
        self.add(torch.stack([output.sum(), torch.tensor(float(output.numel()))]))

    def measure(self, totals: list[float]) -> dict[str, Any]:
        return {"mean": totals[0] / totals[1]}


def test_totals_add_up_in_double_precision() -> None:
    meter = _Mean()
    assert meter.value() == {}
    for value in (1e8, 1.0, 1.0, 1.0):  # in float32 the ones would be lost
        meter.update(torch.tensor([value]), torch.tensor(0))
    assert meter.value() == {"mean": (1e8 + 3) / 4}
    meter.load_sum([{"totals": None}])
    assert meter.value() == {}
