"""Rarely used components: imported only when a config names them."""

from sslengine.registry import HOOK_ADAPTERS, HOOKS

HOOK_ADAPTERS.declare("sslengine.contrib.detectron2", "detectron2")
HOOKS.declare("sslengine.contrib.layer_memory", "layer_memory")
