"""What a run tells: to the screen, to files, to TensorBoard. Rank 0 only, but for log files."""

from sslengine.registry import WRITERS

WRITERS.declare("sslengine.monitor.build", "console", "csv", "images", "json", "log", "tensorboard")
