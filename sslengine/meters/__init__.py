"""Metrics of a phase, accumulated on the device."""

from sslengine.registry import METERS

METERS.base = "sslengine.meters.base:Meter"
METERS.declare("sslengine.meters.mean_ap", "mean_ap_list_meter")
METERS.declare(
    "sslengine.meters.top_k",
    "accuracy_list_meter", "precision_at_k_list_meter", "recall_at_k_list_meter",
)  # fmt: skip
