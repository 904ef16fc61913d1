"""Through transparent pixels every command sees the same colour."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sslengine
from sslengine.command.embed import embed
from sslengine.config.sections import read
from sslengine.config.show import show
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions
from sslengine.predictor import Predictor
from tests.command.photos import SMALL, config_of, write_table
from tests.command.test_columns import datasets_of, judged


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


def _older(config: str) -> str:
    """As a version without the key wrote it."""
    return "".join(each for each in config.splitlines(True) if "TRANSPARENT" not in each)


@pytest.mark.parametrize("given", ["white", "black", "older"])
def test_judge_reads_both_sets_as_the_run_was_trained(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own images, of which some are held out, and others."""
    place = write_invisible(tmp_path / "images")
    data: dict[str, Any] = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(place)]}
    if given == "black":
        data["TRANSPARENT"] = given
    elif given == "older":
        monkeypatch.setattr("sslengine.engines.run.show", lambda resolved: _older(show(resolved)))
    for number, more in enumerate(((), (f"--train={place}", f"--val={place}"))):
        config = judged(tmp_path / str(number), data, monkeypatch, *more)
        for split in datasets_of(config):
            pixels = np.asarray(split.sources[0].image(0))
            seen = {"white": {255}, "black": {0}}.get(given)
            assert seen is None or set(pixels.flat) == seen
            assert seen or pixels.std() > 50


@pytest.mark.parametrize("older", [False, True])
def test_other_images_are_read_as_the_run_was_trained(
    older: bool, classifier: Path, tmp_path: Path
) -> None:
    """By predict, embed and sslengine.load."""
    run = tmp_path / "run"
    shutil.copytree(classifier / "run", run)
    if older:
        (run / "config.yaml").write_text(_older((run / "config.yaml").read_text()))
    (query,) = write_invisible(tmp_path / "images", count=1).iterdir()
    image = Image.open(query)
    seen = image.convert("RGB") if older else Image.new("RGB", image.size, "white")
    seen.save(tmp_path / "images" / "seen.png")
    predictor, backbone = Predictor(run, nearest=0), sslengine.load(run)
    for given in (query, image):
        assert torch.equal(predictor(given).features, predictor(seen).features)
    assert torch.equal(backbone.transform(image), backbone.transform(seen))
    rows = embed(run, tmp_path / "images", workers=0).features
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
