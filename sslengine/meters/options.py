"""`config.METERS`: what is measured in each phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from sslengine.config.sections import named, section
from sslengine.registry import METERS


@section("METERS", components=METERS)
@dataclass
class MetersOptions:
    # VISSL's older form of `names`: one meter.
    name: str = named(METERS, "")
    # Arguments of each stand in a section of its name.
    names: list[str] = named(METERS, [])
    # Measure in train phases too.
    enable_training_meter: bool = True
    model_output_mask: bool = False
    # `mean_ap_list_meter` and friends: sections of other meters are read only when they are used.
    IGNORED: ClassVar[dict[str, str]] = dict.fromkeys(
        ("precision_at_k_list_meter", "recall_at_k_list_meter", "mean_ap_list_meter"),
        "this meter is not available yet.",
    )

    def check(self) -> Iterator[str]:
        if self.model_output_mask:
            yield "model_output_mask: not available yet; set it to false."
