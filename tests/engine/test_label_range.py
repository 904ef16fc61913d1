"""Labels that the model has no outputs for, through the real task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import CrossEntropyLoss
from torch.utils.data import TensorDataset

from sslengine.config.sections import read
from sslengine.engines.train import train
from sslengine.errors import DataError
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from sslengine.python.fit import fit
from tests.config.recipes import resolved
from tests.engines.runs import make_run
from tests.integration.test_classes import _changes as changes_for
from tests.integration.test_classes import _write


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("images"))


def test_a_label_beyond_the_outputs(images: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config.DATA.TRAIN.LABEL_SOURCES.0.*dog"):
        train(
            make_run(
                tmp_path, **changes_for(images, MODEL__HEAD__PARAMS=[["mlp", {"dims": [32, 2]}]])
            )
        )
    labels = np.array([0] * 23 + [7])
    np.save(tmp_path / "labels.npy", labels)
    changes = changes_for(images, "npy", TEST_MODEL=False)
    changes["DATA__TRAIN"]["LABEL_PATHS"] = [str(tmp_path / "labels.npy")]
    with pytest.raises(DataError, match=r"config.DATA.TRAIN.LABEL_SOURCES.0.*label 7"):
        train(make_run(tmp_path, **changes))
    # One that cross entropy leaves out is none that is out of range.
    np.save(tmp_path / "labels.npy", np.where(labels == 7, -100, labels))
    train(make_run(tmp_path / "ignored", **{**changes, "OPTIMIZER__num_epochs": 1}))


def test_labels_of_a_dataset_of_python_are_its_own(images: Path) -> None:
    """`fit` has no LABEL_SOURCES either, and its labels are no numbers of images."""
    config = resolved(**changes_for(images, TEST_MODEL=False)).config
    model = build_model(read(config, ModelOptions))
    data = TensorDataset(torch.rand(24, 3, 8, 8), torch.arange(24) % 3)
    session = fit(
        model, data, loss=CrossEntropyLoss(), optimizer={"name": "sgd"}, iterations=1, device="cpu"
    )
    assert session.complete


def test_numbers_of_images_in_place_of_classes(images: Path, tmp_path: Path) -> None:
    """As where LABEL_SOURCES is forgotten. With an output for each image it is a method."""
    changes = changes_for(images, TEST_MODEL=False, OPTIMIZER__num_epochs=1)
    changes["DATA__TRAIN"] |= {"LABEL_SOURCES": [], "LABEL_TYPE": "sample_index"}
    with pytest.raises(DataError, match=r"config.DATA.TRAIN.LABEL_TYPE: "):
        train(make_run(tmp_path / "wrong", **changes))
    changes["MODEL__HEAD__PARAMS"] = [["mlp", {"dims": [32, 24]}]]
    train(make_run(tmp_path / "right", **changes))
