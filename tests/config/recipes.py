"""A small whole config for tests: SimCLR on noise, seconds on a CPU."""

from __future__ import annotations

import copy
from typing import Any

from sslengine import catalog  # noqa: F401 - declares the names that ship with sslengine
from sslengine.config.resolve import Resolved, resolve_dict

RECIPE: dict[str, Any] = {
    "LOG_FREQUENCY": 2,
    "TEST_MODEL": False,
    "DATA": {"NUM_DATALOADER_WORKERS": 0,
             "TRAIN": {"DATA_SOURCES": ["synthetic"], "RANDOM_SYNTHETIC_IMAGES": True,
                       "DEFAULT_GRAY_IMG_SIZE": 12, "DATA_LIMIT": 16, "BATCHSIZE_PER_REPLICA": 4,
                       "TRANSFORMS": [{"name": "ImgReplicatePil", "num_times": 2},
                                      {"name": "RandomResizedCrop", "size": 8},
                                      {"name": "RandomHorizontalFlip"}, {"name": "ToTensor"}],
                       "COLLATE_FUNCTION": "simclr_collator", "DROP_LAST": True}},
    "MODEL": {"TRUNK": {"NAME": "resnet",
                        "RESNETS": {"DEPTH": 18, "WIDTH_MULTIPLIER": 0.0625, "STEM": "small"}},
              "HEAD": {"PARAMS": [["mlp", {"dims": [32, 8]}]]}},
    "LOSS": {"name": "simclr_info_nce_loss"},
    "OPTIMIZER": {"num_epochs": 2,
                  "param_schedulers": {"lr": {"name": "cosine", "start_value": 0.1,
                                              "end_value": 0.0, "update_interval": "step"}}},
    "DISTRIBUTED": {"BACKEND": "gloo", "NUM_PROC_PER_NODE": 1},
    "MACHINE": {"DEVICE": "cpu"},
}  # fmt: skip


def recipe(**changes: Any) -> dict[str, Any]:
    """The recipe with changes by key path, dots as double underscores: DATA__TRAIN__DATA_LIMIT=8."""
    tree = copy.deepcopy(RECIPE)
    for path, value in changes.items():
        *parents, key = path.split("__")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[key] = copy.deepcopy(value)  # a caller's constant stays as it is
    return tree


def resolved(**changes: Any) -> Resolved:
    return resolve_dict(recipe(**changes), name="test")
