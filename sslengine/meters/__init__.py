"""Metrics of a phase, accumulated on the device, and `config.METERS`, which names them."""

from __future__ import annotations

from dataclasses import dataclass

from sslengine.config.sections import named, section
from sslengine.registry import METERS

METERS.base = "sslengine.meters.base:Meter"
METERS.declare("sslengine.meters.mean_ap", "mean_ap_list_meter")
METERS.declare(
    "sslengine.meters.top_k",
    "accuracy_list_meter", "precision_at_k_list_meter", "recall_at_k_list_meter",
)  # fmt: skip


@section("METERS", components=METERS)
@dataclass
class MetersOptions:
    # VISSL's older form of `names`: one meter.
    name: str = named(METERS, "")
    # The meters. The arguments of each are in a section of its name.
    names: list[str] = named(METERS, [])
    # Measure in train phases too.
    enable_training_meter: bool = True
    # In tests a class that no label of TEST has is never predicted: ImageNet-A, -R and ObjectNet
    # show some of the classes of a model.
    model_output_mask: bool = False
