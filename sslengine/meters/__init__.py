"""Running measures of a phase, accumulated on the device."""

from sslengine.registry import METERS

METERS.declare("sslengine.meters.accuracy", "accuracy_list_meter")
