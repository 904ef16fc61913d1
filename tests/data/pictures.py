"""Small image files for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def picture(number: int, side: int = 8) -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def write_picture(path: Path, number: int, side: int = 8) -> Path:
    """A lossless picture that `picture(number, side)` equals."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(number, side).save(path)
    return path


def write_tree(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        write_picture(root / name, number)
    return root
