"""Kept features are computed again when the user's code is edited."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sslengine.engines.train import train
from sslengine.predictor import Predictor
from sslengine.predictor.checkpoints import read_checkpoints
from tests.engines.runs import make_run
from tests.engines.test_stored import MEANS, stored
from tests.predictor.runs import changes, pictures

SOURCE = """
import levels_of_users
from PIL import Image
from sslengine.data.sources.disk import FolderSource

class Brighter(FolderSource):
    def read(self, index):
        image = Image.new("RGB", (16, 16), (levels_of_users.LEVEL,) * 3)
        image.save(file := levels_of_users.BytesIO(), "png")
        return file.getvalue()
"""


@pytest.fixture
def level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Writes the user's modules, as a new process finds them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(value: int) -> None:
        (tmp_path / "users_source.py").write_text(SOURCE)
        (tmp_path / "levels_of_users.py").write_text(f"from io import BytesIO\nLEVEL = {value}\n")
        for name in ("users_source", "levels_of_users"):
            sys.modules.pop(name, None)

    return write


def test_stored_features(tmp_path: Path, level: Callable[[int], None]) -> None:
    """A module that the named one imports."""
    pictures(tmp_path / "images")

    def rows() -> tuple[torch.Tensor, str]:
        source = ["users_source:Brighter"]
        found, said = stored(
            tmp_path / "run", tmp_path / "images", MEANS, DATA_SOURCES=source, LABEL_SOURCES=source
        )
        return found.stores["means"].layer("mean").tensor(), said

    level(51)
    assert rows()[0].unique().tolist() == pytest.approx([0.2])
    assert "are on the disk" in rows()[1]
    level(102)
    assert rows()[0].unique().tolist() == pytest.approx([0.4])


def test_the_predictors_index_and_features_of_checkpoints(
    tmp_path: Path, level: Callable[[int], None]
) -> None:
    pictures(tmp_path / "images")
    source = {"DATA__TRAIN__DATA_SOURCES": ["users_source:Brighter"]}
    source["DATA__TRAIN__LABEL_SOURCES"] = source["DATA__TRAIN__DATA_SOURCES"]

    def found() -> list[torch.Tensor]:
        predictor = Predictor(tmp_path / "run", trust_config=True)
        (read,) = read_checkpoints(predictor, [predictor.checkpoint], views=1, rows=12)
        return [predictor.index.features, read.inputs.features, read.inputs.views]

    level(51)
    train(make_run(tmp_path / "run", **changes(tmp_path / "images", **source)))
    before, again = found(), found()
    level(250)
    after = found()
    assert all(one.equal(other) for one, other in zip(before, again, strict=True))
    assert not any(one.allclose(other) for one, other in zip(before, after, strict=True))
