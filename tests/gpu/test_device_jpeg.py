"""JPEG files that nvJPEG decodes: a CPU's pixels but for a few levels, and nearly so on average."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, split_options
from tests.data.augment.lists import COLOUR
from tests.data.augment.photos import photo

pytestmark = [
    pytest.mark.gpu,
    # torchvision 0.29 deprecates its decoder.
    pytest.mark.filterwarnings("ignore:.*TorchCodec:DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CROPS: list[dict[str, Any]] = [
    {
        "name": "ImgPilToMultiCrop",
        "total_num_crops": 5,
        "num_crops": [2, 3],
        "size_crops": [96, 32],
        "crop_scales": [[0.3, 1], [0.05, 0.3]],
    },
    {"name": "RandomHorizontalFlip"},
]


def crops(folder: Path, backend: str, device: str, colours: list[dict[str, Any]]) -> list[Tensor]:
    split = split_options(
        DATA_SOURCES=["disk_folder"], DATA_PATHS=[str(folder)], LABEL_TYPE="sample_index",
        BATCHSIZE_PER_REPLICA=8, TRANSFORMS=[*CROPS, *colours, {"name": "ToTensor"}],
        COLLATE_FUNCTION="multicrop_collator", CACHE_INDEX=False,
    )  # fmt: skip
    options = DataOptions(TRAIN=split, NUM_DATALOADER_WORKERS=0, AUGMENT_BACKEND=backend)
    feed = DataFeed(options, "TRAIN", training=True, seed=3, device=device)
    return [crop for batch in feed.batches(1) for crop in batch["data"][0]]


@pytest.mark.parametrize("colours", [[], [COLOUR]], ids=["crops", "colours"])
def test_levels(
    tmp_path: Path, colours: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").mkdir()
    for number in range(16):
        image = photo(number).resize((200 + number, 160)).convert("RGB")
        image.save(tmp_path / "a" / f"{number}.jpg", quality=90)
    with caplog.at_level(logging.WARNING):
        made = crops(tmp_path, "device_jpeg", "cuda", colours)
    assert "Pillow decodes" not in caplog.text
    for one, other in zip(made, crops(tmp_path, "pil", "cpu", colours), strict=True):
        assert one.is_cuda
        differences = 255 * (one.cpu() - other).abs()
        assert differences.mean() < 2
        assert (differences > 12).float().mean() < 0.01
