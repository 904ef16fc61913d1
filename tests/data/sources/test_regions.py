from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from sslengine.data.options import split_options
from sslengine.data.sources.base import build_sources
from sslengine.data.sources.disk import RegionSource
from sslengine.errors import DataError
from tests.data.pictures import picture, write_picture


def regions(root: Path, *boxes: object, **keys: object) -> RegionSource:
    write_picture(root / "0.png", 0, side=20)
    entries = [{"path": str(root / "0.png"), "bbox": box} for box in boxes]
    (root / "boxes.json").write_text(json.dumps(entries))
    options = split_options(
        DATA_SOURCES=["disk_roi_annotations"],
        DATA_PATHS=[str(root / "boxes.json")],
        **keys,  # type: ignore[arg-type]
    )
    (source,) = build_sources(options, "TRAIN")
    assert isinstance(source, RegionSource)
    return source


def test_boxes_are_left_top_right_bottom(tmp_path: Path) -> None:
    source = regions(tmp_path, [2, 3, 9, 11], [0, 0, 20, 20], [1.6, 2.4, 5, 7])
    whole = np.asarray(picture(0, side=20))
    assert len(source) == 3
    for index, part in enumerate((whole[3:11, 2:9], whole, whole[2:7, 2:5])):
        assert np.array_equal(np.asarray(source.image(index)), part)
        assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(source)).image(index)), part)
    assert source.path(1) == str(tmp_path / "0.png")


def test_what_lies_outside_is_left_out(tmp_path: Path) -> None:
    source = regions(tmp_path, [-5, 15, 4, 99], [30, 30, 40, 40], [5, 5, 5, 9])
    whole = np.asarray(picture(0, side=20))
    assert np.array_equal(np.asarray(source.image(0)), whole[15:, :4])
    for index in (1, 2):
        with pytest.raises(ValueError, match=r"nothing in common with the image of 20 x 20 pixels"):
            source.image(index)


@pytest.mark.parametrize(
    "text",
    [
        "{", '[{"path": "a"}]', '[{"path": "a", "bbox": [1, 2, 3]}]', "[]", "3",
        '[{"path": 3, "bbox": [1, 2, 3, 4]}]',
    ],
)  # fmt: skip
def test_what_is_no_list_of_boxes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "boxes.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"DATA_PATHS.0: .*boxes.json must hold a JSON list"):
        RegionSource(split_options(DATA_PATHS=[str(path)]), "TRAIN")
