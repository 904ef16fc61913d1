"""A small classifier, trained on pictures on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sslengine.engines.train import train
from tests.engines.runs import make_run

CLASSES, EACH = 3, 4
BATCH = 4


def pictures(folder: Path) -> list[Path]:
    """Noise around a colour for each class."""
    paths = []
    draws = np.random.default_rng(0)
    for number in range(CLASSES * EACH):
        kind = number // EACH
        pixels = draws.integers(0, 60, (20, 16, 3))
        pixels[..., kind] += 150
        path = folder / f"class{kind}" / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
        paths.append(path)
    return paths


def changes(images: Path, **more: Any) -> dict[str, Any]:
    return {
        "LOSS": {"name": "cross_entropy_multiple_output_single_target"},
        "DATA__TRAIN__DATA_SOURCES": ["disk_folder"],
        "DATA__TRAIN__DATA_PATHS": [str(images)],
        "DATA__TRAIN__LABEL_SOURCES": ["disk_folder"],
        "DATA__TRAIN__DATA_LIMIT": -1,
        "DATA__TRAIN__BATCHSIZE_PER_REPLICA": BATCH,
        "DATA__TRAIN__TRANSFORMS": [
            {"name": "RandomResizedCrop", "size": 8},
            {"name": "ToTensor"},
            {"name": "Normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
        ],
        "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
        "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, CLASSES]}]],
        **more,
    }


def make_classifier(folder: Path, **more: Any) -> list[Path]:
    """Trains it in `folder/run`; returns its training images."""
    paths = pictures(folder / "images")
    train(make_run(folder / "run", **changes(folder / "images", **more)))
    return paths
