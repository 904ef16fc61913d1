"""Metrics and logs of a run: screen, files, TensorBoard. Rank 0 writes; each rank has a log."""

from sslengine.registry import WRITERS

WRITERS.declare("sslengine.monitor.build", "console", "images", "json", "log", "tensorboard")
WRITERS.declare("sslengine.monitor.trackers", "mlflow", "tracker")
