"""Small runs on pictures on disk, for the parts of their pages that show these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sslengine.engines.evaluate import evaluate
from sslengine.engines.train import train
from sslengine.report.make_parts import make_parts
from sslengine.report.parts import Parts
from tests.engines.runs import make_run

SIDE, PATCH = 16, 4
EACH = 8  # training images of a class
VIT: dict[str, Any] = {
    "NAME": "vision_transformer",
    "VISION_TRANSFORMERS": {
        "IMAGE_SIZE": SIDE, "PATCH_SIZE": PATCH, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": 24,
        "MLP_DIM": 48, "QKV_BIAS": True,
    },
}  # fmt: skip
PLAIN = [{"name": "RandomResizedCrop", "size": SIDE}, {"name": "ToTensor"}]


def write_classes(root: Path, each: int, first: int = 0) -> Path:
    """Write noise around a colour for each of two classes."""
    for place, kind in enumerate(("blue", "red")):
        (root / kind).mkdir(parents=True)
        for number in range(each):
            draw = np.random.default_rng([first, place, number])
            pixels = draw.integers(0, 60, (20, 24, 3))
            pixels[..., 2 - 2 * place] += 150
            Image.fromarray(pixels.astype(np.uint8)).save(root / kind / f"{number}.png")
    return root


def on_disk(images: Path, split: str = "TRAIN", labels: bool = False) -> dict[str, Any]:
    values: dict[str, Any] = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(images)]}
    values |= {"DATA_LIMIT": -1, "LABEL_SOURCES": ["disk_folder"] if labels else []}
    return {f"DATA__{split}__{key}": value for key, value in values.items()}


def judged(images: Path, test: Path) -> dict[str, Any]:
    """Changes by which a run is judged on labelled images."""
    view = [{"name": "Resize", "size": [SIDE, SIDE]}, {"name": "ToTensor"}]
    return {
        **on_disk(images, "TRAIN", labels=True), **on_disk(test, "TEST", labels=True),
        "DATA__TRAIN__TRANSFORMS": view, "DATA__TEST__TRANSFORMS": view,
        "DATA__TRAIN__COLLATE_FUNCTION": "default_collate", "DATA__TRAIN__DROP_LAST": False,
        "DATA__TEST__MAX_INVALID_SHARE": 1.0,
        "MODEL__FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True, "EXTRACT_TRUNK_FEATURES_ONLY": True},
        "LOSS": {"name": "CrossEntropyLoss"}, "LINEAR_PROBE": {"MAX_ITERATIONS": 5},
        "NEAREST_NEIGHBOR": {"TOPK": [1], "L2_NORM_FEATS": True}, "EVALUATE__LABEL_FREE": [],
    }  # fmt: skip


def trained(folder: Path, **changes: Any) -> Path:
    train(make_run(folder, OPTIMIZER__num_epochs=1, **changes))
    return folder


def judge(folder: Path, images: Path, test: Path) -> None:
    evaluate(make_run(folder, "evaluate", **judged(images, test)))


def parts_of(folder: Path) -> Parts:
    """All that can be made, and everything can be."""
    notes: list[str] = []
    made = make_parts(folder, trust_config=False, notes=notes)
    assert notes == []
    return made
