"""`auto` is what the data says: numbers of classes, and channels (also tests/integration/test_pixels)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import DataSource
from sslengine.errors import DataError
from sslengine.launch.auto import settle_channels, settle_widths
from tests.config.recipes import resolved
from tests.data.pictures import write_picture

CUTMIX = {
    "DATA__TRAIN__COLLATE_FUNCTION": "cutmixup_collator",
    "DATA__TRAIN__COLLATE_FUNCTION_PARAMS": {"num_classes": "auto"},
}
HEADS: dict[str, Any] = {
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": ["auto", 4, "auto"]}]],
    "LOSS__name": "cross_entropy_multiple_output_single_target",
}


def _of_folders(root: Path) -> dict[str, Any]:
    for name in "abc":
        write_picture(root / name / "0.png", 1, 16)
    return {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(root)],
            "LABEL_SOURCES": ["disk_folder"]}  # fmt: skip


def _of_numbers(root: Path) -> dict[str, Any]:
    write_picture(root / "0.png", 1, 16)
    np.save(root / "paths.npy", np.array([str(root / "0.png")] * 4))
    np.save(root / "labels.npy", np.array([0, 6, -1, 2]))
    return {"DATA_SOURCES": ["disk_filelist"], "DATA_PATHS": [str(root / "paths.npy")],
            "LABEL_SOURCES": ["disk_filelist"], "LABEL_PATHS": [str(root / "labels.npy")]}  # fmt: skip


@pytest.mark.parametrize(("make", "count"), [(_of_folders, 3), (_of_numbers, 7)])
def test_the_number_of_classes(make: Any, count: int, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    source = {f"DATA__TRAIN__{key}": value for key, value in make(tmp_path).items()}
    source["DATA__TRAIN__DATA_LIMIT"] = -1
    run = settle_widths(resolved(**source, **HEADS, **CUTMIX))
    assert [["mlp", {"dims": [32, 4, count]}]] == run.config.MODEL.HEAD.PARAMS
    assert {"num_classes": count} == run.config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS
    assert "the classes of DATA.TRAIN" in run.origins[
        "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.num_classes"
    ]  # fmt: skip


def test_without_labels() -> None:
    with pytest.raises(DataError, match=r"number of classes is `auto`, and there are no labels"):
        settle_widths(resolved(**HEADS))


class Heavy(DataSource):
    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        raise AssertionError("built before the launch")

    def __len__(self) -> int:
        return 1

    def image(self, index: int) -> Image.Image:
        raise NotImplementedError


def test_a_source_of_ones_own_is_not_built_before_the_launch() -> None:
    run = resolved(
        DATA__TRAIN__DATA_SOURCES=[f"{__name__}:Heavy"], DATA__TRAIN__DATA_PATHS=["/none"]
    )
    assert settle_channels(run) is run
