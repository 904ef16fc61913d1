"""How much code an image passes, from the loader through the trunk: it must not grow."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sslengine
from sslengine.config.facts import why_not
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, split_options
from tests.data.augment.lists import LISTS
from tests.models.test_build import build

PACKAGE = str(Path(sslengine.__file__).parent)

# Functions and files, as measured: lower them with the code. Of the files four are the trunk's (and
# its sharding's); the rest read, decode, transform, collate.
MOST = {"pil": (81, 22), "numba": (90, 22)}


@pytest.mark.parametrize("backend", MOST)
def test_functions_and_files(backend: str, tmp_path: Path) -> None:
    if why_not(backend):
        pytest.skip(why_not(backend))
    passed = {each for each in _passed(backend, tmp_path) if each[0].startswith(PACKAGE)}
    files = {path for path, _ in passed}
    assert 40 < len(passed) <= MOST[backend][0]
    assert len(files) <= MOST[backend][1], sorted(files)


def _passed(backend: str, folder: Path) -> set[tuple[str, int]]:
    (folder / "a").mkdir()
    for number in range(48):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "a" / f"{number}.jpg")
    split = split_options(
        DATA_SOURCES=["disk_folder"], DATA_PATHS=[str(folder)], LABEL_TYPE="sample_index",
        BATCHSIZE_PER_REPLICA=16, TRANSFORMS=LISTS["simclr"], COLLATE_FUNCTION="simclr_collator",
        CACHE_INDEX=False,
    )  # fmt: skip
    options = DataOptions(TRAIN=split, NUM_DATALOADER_WORKERS=0, AUGMENT_BACKEND=backend)
    feed = DataFeed(options, "TRAIN", training=True, seed=0)
    trunk = build().trunk
    passed: set[tuple[str, int]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith(("<gen", "<list", "<dict", "<set")):
            passed.add((code.co_filename, code.co_firstlineno))

    batches = feed.batches()
    next(batches)  # what is done once in a run
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        with torch.no_grad():
            for batch in batches:
                trunk(batch["data"][0])
    finally:
        sys.setprofile(before)
        feed.close()
    return passed
