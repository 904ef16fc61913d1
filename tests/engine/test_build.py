from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.utils.data import TensorDataset

from sslengine.config.sections import read
from sslengine.engine import build
from sslengine.engine.build import build_base_model, look_at_data
from sslengine.engines.train import train
from sslengine.errors import ConfigError, DataError
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from sslengine.python.fit import fit
from sslengine.testing.run_suite import BF16
from sslengine.testing.runs import Spec, run
from tests.config.recipes import resolved
from tests.data.pictures import write_tree
from tests.engines.runs import make_run
from tests.integration.test_classes import _changes as changes_for
from tests.integration.test_classes import _write

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("given", "broadcasts", "by_hand"),
    [(True, True, True), (False, False, False), ("before_eval", True, False)],
)
def test_what_ranks_exchange(
    given: object, broadcasts: bool, by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = {"BROADCAST_BUFFERS": given, "MANUAL_GRADIENT_REDUCTION": True}
    config = resolved(DISTRIBUTED=distributed).config
    assert not build.build_reduction(config, None).by_hand  # nobody to reduce with
    monkeypatch.setattr(build, "world_size", lambda: 2)
    found = build.build_reduction(config, None)
    assert found.by_hand
    assert (found.broadcasts_buffers, found.broadcasts_by_hand) == (broadcasts, by_hand)


@pytest.mark.parametrize(
    ("device", "sharded", "last"),
    [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)],
)
def test_channels_come_last_by_themselves_on_a_gpu(
    device: str, sharded: bool, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "to", _stays_on_the_cpu(nn.Module.to))
    monkeypatch.setattr(build, "shards", lambda config: sharded)
    config = resolved(MODEL__CHANNELS_LAST="auto").config
    model = build.build_base_model(config, torch.device(device))
    filters = [each for each in model.parameters() if each.ndim == 4 and each[0, 0].numel() > 1]
    assert filters
    assert {each.is_contiguous(memory_format=torch.channels_last) for each in filters} == {last}


def _stays_on_the_cpu(to: Any) -> Any:
    return lambda module, *where, **form: to(module, **form) if form else module


def test_the_scalers_arguments_come_from_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, **more: given.append(more))
    amp = {"USE_AMP": True, "AMP_TYPE": "pytorch", "AMP_DTYPE": "bfloat16",
           "GRAD_SCALER": {"init_scale": 8.0, "growth_interval": 3}}  # fmt: skip
    build.build_run_precision(resolved(MODEL__AMP_PARAMS=amp).config, CPU)
    assert given == [
        {"enabled": False, "init_scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5,
         "growth_interval": 3}
    ]  # fmt: skip


def test_classes_of_train_without_its_feed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a run that only tests asks for; where they cannot be read, it goes without."""
    write_tree(tmp_path / "train", "dog/0.png", "cat/0.png")

    def classes(folder: str, kind: str = "standard") -> list[tuple[str, ...]]:
        changes = {"DATA_SOURCES": ["disk_folder"], "LABEL_SOURCES": ["disk_folder"],
                   "DATA_PATHS": [str(tmp_path / folder)], "LABEL_TYPE": kind}  # fmt: skip
        run = resolved(**{f"DATA__TRAIN__{key}": value for key, value in changes.items()})
        return [each.names for each in build.classes_of_train(run.config)]

    assert classes("train") == [("cat", "dog")]
    assert classes("train", "sample_index") == []
    assert not caplog.text
    assert classes("gone") == []
    assert "TRAIN's classes are not known, TEST's are numbered by themselves" in caplog.text


def test_one_word_for_the_precision_trains_as_the_keys_of_amp_do(tmp_path: Path) -> None:
    """Through real runs: the same losses to the bit, and others than in float32."""
    ways = {"word": {"MACHINE.PRECISION": "bf16"}, "keys": BF16, "fp32": {}}
    losses = {
        name: run(Spec((), (values,)), tmp_path / name).losses for name, values in ways.items()
    }
    assert losses["word"] == losses["keys"] != losses["fp32"]


# ---- channels, also through the real launch in tests/integration/test_pixels.py


def test_a_model_that_is_built_without_a_launch_takes_what_the_data_has(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.zeros((8, 8, 5), np.float32))
    made = resolved(
        DATA__TRAIN__DATA_SOURCES=["disk_folder"], DATA__TRAIN__DATA_PATHS=[str(tmp_path)],
        DATA__TRAIN__IMAGE_MODE="stored", DATA__TRAIN__TRANSFORMS=[{"name": "ImgReplicatePil"}, {"name": "ToTensor"}],
    )  # fmt: skip
    model = build_base_model(made.config, torch.device("cpu"))
    assert model.get_parameter("trunk.conv1.weight").shape[1] == 5


def test_two_splits_that_differ(tmp_path: Path) -> None:
    for split, channels in (("train", 5), ("test", 4)):
        (tmp_path / split).mkdir()
        np.save(tmp_path / split / "0.npy", np.zeros((8, 8, channels), np.float32))
    keys = {
        f"DATA__{split}__{key}": value
        for split in ("TRAIN", "TEST")
        for key, value in {
            "DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(tmp_path / split.lower())],
            "IMAGE_MODE": "stored", "TRANSFORMS": [{"name": "ImgReplicatePil"}, {"name": "ToTensor"}],
        }.items()
    }  # fmt: skip
    assert look_at_data(resolved(**keys).config).channels == 5  # the test set is not read
    with pytest.raises(ConfigError, match=r"config.MODEL.INPUT_CHANNELS: .*TRAIN 5.*TEST 4"):
        look_at_data(resolved(**keys, TEST_MODEL=True).config)


# ---- labels that the model has no outputs for, through the real task


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
