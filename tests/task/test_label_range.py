"""Labels that the model has no outputs for, through the real task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sslengine.engines.train import train
from sslengine.errors import DataError
from tests.engines.runs import make_run
from tests.integration.test_classes import _changes as changes_for
from tests.integration.test_classes import _write


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("images"))


def test_a_label_beyond_the_outputs(images: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config.DATA.TRAIN.*3 classes.*dog.*2 outputs"):
        train(
            make_run(
                tmp_path, **changes_for(images, MODEL__HEAD__PARAMS=[["mlp", {"dims": [32, 2]}]])
            )
        )
    labels = np.array([0] * 23 + [7])
    np.save(tmp_path / "labels.npy", labels)
    changes = changes_for(images, "npy", TEST_MODEL=False)
    changes["DATA__TRAIN"]["LABEL_PATHS"] = [str(tmp_path / "labels.npy")]
    with pytest.raises(DataError, match=r"config.DATA.TRAIN.*label 7.*2\.png|label 7.*3 outputs"):
        train(make_run(tmp_path, **changes))
    # One that cross entropy leaves out is none that is out of range.
    np.save(tmp_path / "labels.npy", np.where(labels == 7, -100, labels))
    train(make_run(tmp_path / "ignored", **{**changes, "OPTIMIZER__num_epochs": 1}))
