"""Rarely used components: imported only when a config names them."""

from sslengine.registry import HOOK_ADAPTERS, WRITERS

HOOK_ADAPTERS.declare("sslengine.contrib.detectron2", "detectron2")
WRITERS.declare("sslengine.contrib.csv_file", "csv")
