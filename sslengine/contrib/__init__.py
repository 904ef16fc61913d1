"""Rarely used components: imported only when a config names them."""

from sslengine.registry import HOOK_ADAPTERS, TRAIN_STEPS, WRITERS

HOOK_ADAPTERS.declare("sslengine.contrib.detectron2", "detectron2")
TRAIN_STEPS.declare("sslengine.contrib.mmengine", "model_train_step")
TRAIN_STEPS.declare("sslengine.contrib.multi_optimizer", "multi_optimizer_train_step")
WRITERS.declare("sslengine.contrib.csv_file", "csv")
