"""The small run that a component is tried in: a tiny network on generated images, on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.compose import Assignment, Composition, Layer, compose, compose_on
from sslengine.config.resolve import Resolved, freeze

# A split of two views of 16 pixels.
SPLIT: dict[str, Any] = {
    "DATA_SOURCES": ["synthetic"],
    "RANDOM_SYNTHETIC_IMAGES": True,
    "RANDOM_SYNTHETIC_LABELS": 4,
    "LABEL_SOURCES": ["synthetic"],
    "DEFAULT_GRAY_IMG_SIZE": 20,
    "TRANSFORMS": [
        {"name": "ImgReplicatePil", "num_times": 2},
        {"name": "RandomResizedCrop", "size": 16},
        {"name": "RandomHorizontalFlip"},
        {"name": "ToTensor"},
    ],
    "COLLATE_FUNCTION": "simclr_collator",
    "DROP_LAST": True,
}
RECIPE: dict[str, Any] = {
    "DATA": {"TRAIN": SPLIT},
    "MODEL": {
        "TRUNK": {
            "NAME": "resnet",
            "RESNETS": {
                "DEPTH": 18, "BLOCKS": [1, 1, 1, 1], "WIDTH_MULTIPLIER": 0.0625, "STEM": "small"
            },
        },
        "HEAD": {"PARAMS": [["mlp", {"dims": [32, 8]}]]},
    },
    "LOSS": {"name": "simclr_info_nce_loss"},
    "OPTIMIZER": {
        "name": "sgd",
        "param_schedulers": {
            "lr": {
                "name": "cosine", "start_value": 0.1, "end_value": 0.0, "update_interval": "step"
            }
        },
    },
    "DISTRIBUTED": {"BACKEND": "gloo"},
}  # fmt: skip
# What makes any run small. Three steps an epoch, so that the fourth is of the next one.
SMALL: dict[str, Any] = {
    "LOG_FREQUENCY": 1,
    "TEST_MODEL": False,
    "DATA.NUM_DATALOADER_WORKERS": 0,
    "DATA.TRAIN.DATA_LIMIT": 12,
    "DATA.TRAIN.BATCHSIZE_PER_REPLICA": 4,
    "OPTIMIZER.num_iterations": 4,
    "DISTRIBUTED.NUM_PROC_PER_NODE": 1,
    "MACHINE.DEVICE": "cpu",
    "HOOKS.COLLAPSE_SIGNS": False,
}

Values = Mapping[str, Any]


def resolve_small(overrides: Sequence[str], *values: Values) -> Resolved:
    """A run as the command line has it, made small.

    overrides: arguments of the command; `config=FILE` takes a file in place of the recipe.
    values: below `config`, by their key paths; these give way to the overrides.
    """
    if any(each.startswith("config=") for each in overrides):
        asked = compose(overrides)
    else:
        layer = Layer("sslengine.testing", {"engine_name": "train", "config": RECIPE})
        asked = compose_on(layer, overrides, "contract")
    ours = [
        Assignment(f"config.{path}", value, f"config.{path}={value}", may_be_new=True)
        for each in (SMALL, *values)
        for path, value in each.items()
    ]
    return freeze(_with_first(asked, ours))


def _with_first(asked: Composition, ours: list[Assignment]) -> Composition:
    return replace(asked, assignments=[*ours, *asked.assignments])
