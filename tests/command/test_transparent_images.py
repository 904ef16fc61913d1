"""Through transparent pixels every command sees the same colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sslengine.config.sections import read
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions
from tests.command.photos import SMALL, config_of, write_table


def write_invisible(folder: Path, count: int = 8) -> Path:
    """Images of noise that cannot be seen, of all kinds that have alpha."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(count):
        image = Image.fromarray(draw.integers(0, 256, (40, 40, 4), np.uint8), "RGBA")
        image = image.convert("LA") if number % 2 else image
        image.putalpha(0)
        image.save(folder / f"{number}.png")
    return folder


def spread(config: Any) -> float:
    """The greatest of the pixels of a view, in the first batch of training."""
    feed = DataFeed(read(config, DataOptions), "TRAIN", training=True, seed=0)
    views = next(feed.batches())["data"]
    feed.close()
    return max(each.flatten(2).std(2).max().item() for each in map(torch.as_tensor, views))


@pytest.mark.parametrize("table", [False, True])
def test_a_run_is_trained_on_white(table: bool, tmp_path: Path) -> None:
    data = write_invisible(tmp_path / "images")
    if table:
        rows = [(f"images/{number}.png", "a") for number in range(8)]
        data = write_table(tmp_path / "images.csv", ("path", "label"), rows)
    given = (str(data), "--method", "simclr", "--model", "resnet18", "--batch-size", "4", *SMALL)
    assert spread(config_of(*given)) < 1e-6
    assert spread(config_of(*given, "--set", "DATA.TRAIN.TRANSPARENT=drop")) > 0.01
