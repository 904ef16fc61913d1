"""A batch norm that would train on one row: found in the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from sslengine.launch.cli import main

TINY = [
    "config.DATA.NUM_DATALOADER_WORKERS=0", "config.OPTIMIZER.num_epochs=1",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.NUM_LAYERS=1", "config.LOG_FREQUENCY=1000",
]  # fmt: skip
KEYS = ("BATCHSIZE_PER_REPLICA", "DROP_LAST=true", "SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN=true")


def run(recipe: str, folder: Path, images: int, batch: int) -> int:
    of = [f"DATA_LIMIT={images}", f"BATCHSIZE_PER_REPLICA={batch}", "DROP_LAST=false"]
    data = [f"config.DATA.TRAIN.{each}" for each in of]
    return main([f"config=quickstart/{recipe}", *TINY, *data, f"config.CHECKPOINT.DIR={folder}"])


@pytest.mark.parametrize(
    ("images", "batch", "why"),
    [
        (4, 1, "BATCHSIZE_PER_REPLICA: A batch has one image on a rank"),
        (9, 4, "The last batch of an epoch has one image on a rank"),
    ],
)
def test_a_batch_of_one_image_on_a_rank_is_refused_early(
    images: int, batch: int, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("msn", tmp_path / "run", images, batch) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert all(key in said.err for key in KEYS)
    assert "step 1/" not in said.out


def test_two_views_in_one_pass_are_two_rows(tmp_path: Path) -> None:
    assert run("simclr", tmp_path / "run", 5, 2) == 0
