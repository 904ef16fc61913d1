"""Metrics and logs of a run: screen, files, TensorBoard. Rank 0 writes; each rank has a log."""

from sslengine.registry import WRITERS

WRITERS.base = "sslengine.monitor.writers:Writer"
WRITERS.declare("sslengine.monitor.console", "console", "log")
WRITERS.declare("sslengine.monitor.trackers", "mlflow", "tracker")
WRITERS.declare("sslengine.monitor.writers", "images", "json", "tensorboard")
