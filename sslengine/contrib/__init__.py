"""What is for a few: known by name, imported when a config asks for it. Nothing else imports it."""

from sslengine.registry import HOOK_ADAPTERS, HOOKS

HOOK_ADAPTERS.declare("sslengine.contrib.detectron2", "detectron2")
HOOKS.declare("sslengine.contrib.layer_memory", "layer_memory")
