"""Optimizers, LARC and LARS, parameter groups, and schedules as functions of `where`."""

from sslengine.registry import OPTIMIZERS, PARAM_GROUPS, SCHEDULERS

OPTIMIZERS.declare(
    "sslengine.optim.optimizers",
    *("sgd", "sgd_fsdp", "adam", "adamw", "adamw_mt", "rmsprop", "lars"),
)

PARAM_GROUPS.declare(
    "sslengine.optim.param_groups", "default", "dino", "lr_decay", "linear_eval_heads"
)

SCHEDULERS.declare(
    "sslengine.optim.schedules",
    *("constant", "linear", "cosine", "polynomial", "multistep", "step"),
    *("step_with_fixed_gamma", "inverse_sqrt", "cosine_warm_restart", "composite"),
)
