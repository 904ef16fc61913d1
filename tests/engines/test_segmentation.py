"""A trained head on maps through the engine `evaluate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.engines.test_on_images import judged
from tests.engines.test_videos import TRUNK, weights

assert weights  # a fixture


def _bands(root: Path) -> dict[str, object]:
    """Images 24 x 48 of three bands of colour, and masks of them; test masks are twice as large."""
    draw, sources = np.random.default_rng(0), {}
    colours = np.array([[230, 40, 40], [40, 220, 50], [50, 40, 240]])
    for split, count, scale in (("TRAIN", 12, 1), ("TEST", 5, 2)):
        files = [root / "images" / f"{split}{number}.png" for number in range(count)]
        for path in files:
            bands = draw.permutation(3).repeat(8)[:, None].repeat(48, 1)
            pixels = colours[bands] + draw.normal(0, 10, (24, 48, 3))
            mask = root / "masks" / path.name
            for each in (path, mask):
                each.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
            large = (bands + 4).repeat(scale, 0).repeat(scale, 1).astype(np.uint8)
            large[:, -1] = 255
            Image.fromarray(large).save(mask)
        listed = root / f"{split}.npy"
        np.save(listed, np.array([str(path) for path in files]))
        np.save(root / f"{split}_labels.npy", np.arange(count) % 2)
        sources[split] = {
            "DATA_SOURCES": ["disk_filelist"], "DATA_PATHS": [str(listed)],
            "LABEL_SOURCES": ["disk_filelist"],
            "LABEL_PATHS": [str(root / f"{split}_labels.npy")], "DATA_LIMIT": -1,
            "TRANSFORMS": [{"name": "Resize", "size": [24, 24]}, {"name": "ToTensor"}],
        }  # fmt: skip
    train = {f"DATA__TRAIN__{key}": value for key, value in sources["TRAIN"].items()}
    return {**train, "DATA__TEST": sources["TEST"]}


@pytest.mark.slow
def test_bands_are_learnt(tmp_path: Path, weights: str) -> None:
    changes, masks = _bands(tmp_path), str(tmp_path / "masks")
    dense = {"MASKS_TRAIN": masks, "MASKS_TEST": masks, "SIDE": 48}
    asked = {"PROTOCOLS": ["dense", "segmentation"], "DENSE": dense,
             "SEGMENTATION": {"ITERATIONS": 150, "LR": 0.02}}  # fmt: skip
    found, text = judged(tmp_path / "run", weights, MODEL__TRUNK=TRUNK, EVALUATE=asked, **changes)
    assert set(found) == {"trained", "untrained", "raw pixels"}
    for name, each in found.items():
        row = each["segmentation"]
        assert row["metrics"]["mIoU"] > 95, name
        assert row["details"]["classes"] == 3
        assert row["details"]["images"] == {"train": 12, "test": 5}
        assert row["chosen_on"] == "nothing: there is nothing to choose"
        assert row["details"]["map"] == each["dense"]["details"]["map"]
    details = found["trained"]["segmentation"]["details"]
    assert (details["layer"], details["map"]) == ("lastMAP", [12, 12])
    assert found["raw pixels"]["segmentation"]["details"]["layer"] == "16x16"
    assert "segmentation" in text


def test_without_masks(tmp_path: Path, weights: str) -> None:
    found, _ = judged(
        tmp_path / "run", weights, MODEL__TRUNK=TRUNK, EVALUATE={"PROTOCOLS": ["segmentation"]},
        **_bands(tmp_path),
    )  # fmt: skip
    row = found["trained"]["segmentation"]
    assert not row["metrics"]
    assert "config.EVALUATE.DENSE.MASKS_TRAIN" in row["notes"][0]
