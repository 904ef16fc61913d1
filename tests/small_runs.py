"""Overrides with which a config of any size trains two steps here: generated images, small crops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sslengine.config.compose import Composition, compose, overrides
from sslengine.data.options import OF_ENCODED_SOURCES, SplitOptions


def _generated(split: str) -> list[str]:
    values = {
        "DATA_SOURCES": ["synthetic"],
        "DATA_PATHS": [],
        "LABEL_PATHS": [],
        "RANDOM_SYNTHETIC_IMAGES": True,
        "DEFAULT_GRAY_IMG_SIZE": 40,
        "DATA_LIMIT": 16,
        "BATCHSIZE_PER_REPLICA": 4,
        # Options of files, which generated images do not have.
        **{key: getattr(SplitOptions(), key) for key in OF_ENCODED_SOURCES},
    }
    return overrides({f"DATA.{split}.{key}": value for key, value in values.items()})


_HERE = [
    "config.OPTIMIZER.num_iterations=2",
    "config.MACHINE.DEVICE=cpu",
    "config.MODEL.AMP_PARAMS.USE_AMP=false",
    "config.DISTRIBUTED.NUM_NODES=1",
    "config.DISTRIBUTED.NUM_PROC_PER_NODE=1",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
]
SMALL = [*_HERE, *_generated("TRAIN"), "config.TEST_MODEL=false"]


def make_small(arguments: Sequence[str], root: Path) -> list[str]:
    """Return overrides with which a config of any size can train here, or only test."""
    said = compose(arguments, [str(root)])
    split = "TEST" if said.last_value("config.TEST_ONLY") else "TRAIN"
    small = [*_HERE, *_generated("TEST")] if split == "TEST" else SMALL
    more: dict[str, Any] = {}
    transforms = said.last_value(f"config.DATA.{split}.TRANSFORMS") or []
    if said.last_value(f"config.DATA.{split}.LABEL_SOURCES"):
        width = _last_width(said)
        more |= {"LABEL_SOURCES": ["synthetic"], "RANDOM_SYNTHETIC_LABELS": min(3, width)}
        if said.last_value("config.LOSS.name") == "bce_logits_multiple_output_single_target":
            rows = {"name": "OneHotEncode", "num_classes": width}
            more |= {"TRANSFORMS": [rows, *transforms], "COLLATE_FUNCTION": "default_collate"}
            more["COLLATE_FUNCTION_PARAMS"] = {}
    return [*small, *overrides({f"DATA.{split}.{key}": value for key, value in more.items()})]


def _last_width(said: Composition) -> int:
    """Return the number of outputs of the last head, as far as the file says it."""
    heads = str(said.last_value("config.MODEL.HEAD.PARAMS"))
    found = re.findall(r"'(?:dims|num_classes)': \[?(?:[^]}]*, )?(\d+)[]},]", heads)
    return int(found[-1]) if found else 3
