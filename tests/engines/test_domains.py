"""Domains that are a column of the images' table, through the engine `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.engines.test_on_images import judged, trained

assert trained  # a fixture


def _split(root: Path, count: int, domains: int) -> dict[str, Any]:
    """Colours by class, each domain darker than the last."""
    root.mkdir()
    draw, lines = np.random.default_rng(count), ["path,label,camera"]
    for number in range(count):
        label, camera = number % 2, number // 2 % domains
        pixels = draw.normal(150 - 30 * camera, 10, (16, 16, 3)) + 30 * np.eye(3)[label]
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"{number}.png")
        lines.append(f"{root / f'{number}.png'},{'ab'[label]},camera {camera}")
    (root / "table.csv").write_text("\n".join(lines) + "\n")
    return {"DATA_SOURCES": ["csv_filelist"], "LABEL_SOURCES": ["csv_filelist"], "DATA_LIMIT": -1,
            "DATA_PATHS": [str(root / "table.csv")], "TRANSFORMS": [{"name": "ToTensor"}]}  # fmt: skip


@pytest.mark.slow
def test_a_column_of_the_table(tmp_path: Path, trained: str) -> None:
    train = _split(tmp_path / "train", 36, 3)
    changes = {f"DATA__TRAIN__{key}": value for key, value in train.items()}
    tested = {"DATA__TEST": _split(tmp_path / "test", 24, 3)}
    given = {"PROTOCOLS": ["domains"], "DOMAIN_COLUMN": "camera"}
    found, text = judged(tmp_path / "run", trained, **changes, **tested, EVALUATE=given)
    assert set(found) == {"trained", "untrained", "raw pixels"}
    of = found["raw pixels"]["domains"]["details"]["domains"]
    assert {name: each["images"] for name, each in of.items()} == {
        "camera 0": 8, "camera 1": 8, "camera 2": 8,
    }  # fmt: skip
    assert 0 <= found["trained"]["domains"]["metrics"]["worst domain"] <= 100
    assert "mean of domains" in text
    given["DOMAIN_COLUMN"] = "cameras"
    found, _ = judged(tmp_path / "run", trained, **changes, **tested, EVALUATE=given)
    (note,) = found["trained"]["domains"]["notes"]
    assert "config.EVALUATE.DOMAIN_COLUMN" in note
    assert "has no column 'cameras'. Did you mean 'camera'?" in note


@pytest.mark.slow
def test_images_without_columns(tmp_path: Path, trained: str) -> None:
    given = {"PROTOCOLS": ["domains"], "DOMAIN_COLUMN": "camera"}
    found, _ = judged(tmp_path, trained, EVALUATE=given)
    assert "has no columns; expected a table" in found["trained"]["domains"]["notes"][0]
