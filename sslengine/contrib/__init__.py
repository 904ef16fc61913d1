"""Rarely used components: imported only when a config names them."""

from sslengine.registry import HOOK_ADAPTERS, HOOKS, TRAIN_STEPS

HOOK_ADAPTERS.declare("sslengine.contrib.detectron2", "detectron2")
HOOKS.declare("sslengine.contrib.layer_memory", "layer_memory")
TRAIN_STEPS.declare("sslengine.contrib.multi_optimizer", "multi_optimizer_train_step")
