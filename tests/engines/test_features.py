"""Features of layers in order, and the files of VISSL's engine that extracts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.checkpoint import files
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.engines.features import (
    Features,
    extract,
    extract_features,
    join,
    layers_of,
    ordered_feed,
    pixels,
)
from sslengine.engines.train import train
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from sslengine.precision import Precision
from sslengine.trained import find_weights
from tests.config.recipes import resolved
from tests.engines.runs import make_run, screen
from tests.engines.test_evaluate import FROZEN, SHAPES

CPU = torch.device("cpu")
LABELLED: dict[str, Any] = {
    "DATA__TRAIN__LABEL_SOURCES": ["synthetic"], "DATA__TRAIN__RANDOM_SYNTHETIC_LABELS": 3,
    "DATA__TRAIN__TRANSFORMS": [{"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate", "DATA__TRAIN__DATA_LIMIT": 7,
    "DATA__TRAIN__DROP_LAST": False, "LOSS": {"name": "CrossEntropyLoss"},
}  # fmt: skip


def _extract(compute: Any, **changes: Any) -> Features:
    config = resolved(**LABELLED, **changes).config
    feed = ordered_feed(config, "TRAIN", CPU)
    mine = join(list(extract(compute, feed, read(config, DataOptions).TRAIN, Precision())))
    feed.close()
    return mine


def test_every_sample_once_and_in_order() -> None:
    features = _extract(pixels)
    assert features.indices.tolist() == list(range(7))
    assert features.layers["16x16"].shape == (7, 3 * 16 * 16)
    assert features.targets.shape == (7,)


def test_pixels_are_averaged() -> None:
    images = torch.arange(32.0).expand(1, 3, 32, 32)
    row = pixels(images)["16x16"].view(3, 16, 16)[0, 0]
    assert row.tolist() == [2 * index + 0.5 for index in range(16)]


def test_layers_have_the_names_of_the_config() -> None:
    names = [["res4", ["AdaptiveAvgPool2d", [[1, 1]]]], ["flatten", ["Identity", []]]]
    model_options = {
        "MODEL__FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True, "EXTRACT_TRUNK_FEATURES_ONLY": True,
                                         "LINEAR_EVAL_FEAT_POOL_OPS_MAP": names},
    }  # fmt: skip
    model = build_model(read(resolved(**LABELLED, **model_options).config, ModelOptions))
    layers = layers_of(model)(torch.zeros(2, 3, 12, 12))
    assert {name: tuple(rows.shape) for name, rows in layers.items()} == {
        "res4": (2, 16),
        "flatten": (2, 32),
    }
    assert not model.training


def test_the_newest_weights_whatever_the_pointer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, folder = resolved().config, tmp_path / "checkpoints"
    assert find_weights(config, tmp_path) == folder / files.POINTER
    files.write({"n": 1}, folder, "model_phase0.torch", {"number": 1})
    # A run is killed after the checkpoint has its name and before the pointer is set.
    monkeypatch.setattr(files, "point_to", lambda *_: None)
    files.write({"n": 2}, folder, "model_phase1.torch", {"number": 2})
    assert find_weights(config, tmp_path) == folder / "model_phase1.torch"
    # A file that is named is taken, and that is said.
    named = resolved(MODEL__WEIGHTS_INIT__PARAMS_FILE="other.pth").config
    with caplog.at_level("WARNING", "sslengine"):
        assert find_weights(named, tmp_path) == Path("other.pth")
    assert f"other.pth is used, and not {folder / 'model_phase1.torch'}" in caplog.text
    # A broken one is not judged.
    (folder / "model_phase1.torch").write_bytes(b"broken")
    assert find_weights(config, tmp_path) == folder / "model_phase0.torch"


# ---- extract features


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_have_vissls_names_and_hold_the_samples_in_order(tmp_path: Path) -> None:
    run = make_run(tmp_path, "extract_features", **LABELLED, MODEL__HEAD__PARAMS=[])
    extract_features(run)
    folder = tmp_path / "features"
    assert _files(folder) == [
        f"rank0_chunk0_train_flatten_{kind}.npy" for kind in ("features", "inds", "targets")
    ]
    features = np.load(folder / "rank0_chunk0_train_flatten_features.npy")
    assert (features.shape, features.dtype) == ((7, 32), np.float32)
    assert np.load(folder / "rank0_chunk0_train_flatten_inds.npy").tolist() == list(range(7))
    assert "features of 7 images" in screen(run)
    assert (tmp_path / "config_extract_features.yaml").exists()


def test_chunks_and_a_folder_of_ones_own(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", "extract_features", **LABELLED, EXTRACT_FEATURES__CHUNK_THRESHOLD=0,
        EXTRACT_FEATURES__OUTPUT_DIR=str(tmp_path / "out"),
    )  # fmt: skip
    extract_features(run)
    # 7 images, 4 a batch: two batches, two chunks, three files each.
    assert len(_files(tmp_path / "out")) == 6


def test_the_weights_are_those_of_the_run_or_nobody_is_left_in_doubt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(make_run(tmp_path / "run", **SHAPES))
    features = {}
    for folder in ("run", "untrained"):
        run = make_run(tmp_path / folder, "extract_features", **FROZEN)
        extract_features(run)
        file = tmp_path / folder / "features" / "rank0_chunk0_train_flatten_features.npy"
        features[folder] = np.load(file)
        told = (
            "checkpoints/model_final_checkpoint_"
            if folder == "run"
            else "weights     as initialised"
        )
        assert told in screen(run)
        assert ("untrained model" in caplog.text) == (folder == "untrained")
    assert not np.allclose(features["run"], features["untrained"])
