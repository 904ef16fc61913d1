"""A run: its loop, a step, what the step changes (state.py), what it is made of (parts.py)."""

from sslengine.registry import TASKS, TRAIN_STEPS

TASKS.declare("sslengine.engine.task", "self_supervision_task", "self_supervision_fsdp_task")
TRAIN_STEPS.declare(
    "sslengine.engine.step",
    "standard_train_step", "multi_input_train_step", "pirl_train_step", "many_heads_train_step",
)  # fmt: skip
TRAIN_STEPS.declare("sslengine.engine.gradcache", "gradcache_train_step")
TRAIN_STEPS.declare("sslengine.engine.loss_dict", "loss_dict_train_step")
