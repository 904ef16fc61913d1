"""Samples that differ each time they are made: a run says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sslengine.data.batch.collators import simclr_collator
from sslengine.data.sources.generated import SyntheticSource
from sslengine.engines.train import train
from tests.engines.runs import make_run

HERE = __name__


def noisy(image: Any, draws: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image).astype(np.int16)
    pixels = pixels + draws.integers(-9, 10, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


class Seeded:
    """Draws from numpy's stream, which is seeded for each sample."""

    def __call__(self, image: Any) -> Image.Image:
        return noisy(image, np.random.default_rng(np.random.randint(2**32)))  # noqa: NPY002


class Kept:
    def __init__(self) -> None:
        self.draws = np.random.default_rng(0)

    def __call__(self, image: Any) -> Image.Image:
        return noisy(image, self.draws)


class KeptBySource(SyntheticSource):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.draws = np.random.default_rng(0)

    def image(self, index: int) -> Image.Image:
        return noisy(super().image(index), self.draws)


DRAWS = np.random.default_rng(0)


def of_module(batch: Sequence[Any]) -> Any:
    made = simclr_collator(batch)
    return {**made, "data": [each + DRAWS.random() for each in made["data"]]}


def views(*more: dict[str, Any]) -> dict[str, Any]:
    listed = [{"name": "ImgReplicatePil", "num_times": 2}, *more, {"name": "ToTensor"}]
    return {"DATA__TRAIN__TRANSFORMS": listed}


@pytest.mark.parametrize(
    ("workers", "changes", "named"),
    [
        (1, views({"name": f"{HERE}:Seeded"}), ""),
        (0, views({"name": f"{HERE}:Kept"}), f"{HERE}:Kept"),
        (1, views({"name": f"{HERE}:Kept"}), f"{HERE}:Kept"),
        (0, views({"name": "ImgPilMultiCropRandomApply", "prob": [1.0, 1.0],
                   "transforms": [{"name": f"{HERE}:Kept"}]}), f"{HERE}:Kept"),
        (0, {"DATA__TRAIN__DATA_SOURCES": [f"{HERE}:KeptBySource"],
             "DATA__TRAIN__LABEL_SOURCES": [], "DATA__TRAIN__LABEL_TYPE": "zero"},
         f"{HERE}:KeptBySource"),
        (0, {"DATA__TRAIN__COLLATE_FUNCTION": f"{HERE}:of_module"}, f"{HERE}:of_module"),
    ],
)  # fmt: skip
def test_a_generator_that_an_object_keeps_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, workers: int, changes: dict[str, Any],
    named: str,
) -> None:  # fmt: skip
    train(make_run(tmp_path, DATA__NUM_DATALOADER_WORKERS=workers, **changes))
    warnings = [each for each in caplog.messages if "samples differed" in each]
    assert len(warnings) == bool(named)
    assert all(f"same seed ({named})" in each for each in warnings)
