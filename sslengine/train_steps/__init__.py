"""Named train steps: what happens to one batch."""

from sslengine.registry import TRAIN_STEPS

TRAIN_STEPS.declare(
    "sslengine.train_steps.step",
    "standard_train_step", "multi_input_train_step", "pirl_train_step",
)  # fmt: skip
TRAIN_STEPS.declare("sslengine.train_steps.gradcache", "gradcache_train_step")
TRAIN_STEPS.declare("sslengine.train_steps.model", "loss_dict_train_step")
TRAIN_STEPS.declare("sslengine.train_steps.many_heads", "many_heads_train_step")
