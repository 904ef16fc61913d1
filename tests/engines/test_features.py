from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.checkpoint import files
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.engines.features import (
    Features,
    extract,
    join,
    layers_of,
    ordered_feed,
    pixels,
    trained_weights,
)
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from sslengine.precision import Precision
from tests.config.recipes import resolved

CPU = torch.device("cpu")
LABELLED: dict[str, Any] = {
    "DATA__TRAIN__LABEL_SOURCES": ["synthetic"],
    "DATA__TRAIN__RANDOM_SYNTHETIC_LABELS": 3,
    "DATA__TRAIN__TRANSFORMS": [{"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
    "DATA__TRAIN__DATA_LIMIT": 7,
    "DATA__TRAIN__DROP_LAST": False,
    "LOSS": {"name": "CrossEntropyLoss"},
}


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
        "MODEL__FEATURE_EVAL_SETTINGS": {
            "EVAL_MODE_ON": True,
            "EXTRACT_TRUNK_FEATURES_ONLY": True,
            "LINEAR_EVAL_FEAT_POOL_OPS_MAP": names,
        }
    }
    model = build_model(read(resolved(**LABELLED, **model_options).config, ModelOptions))
    layers = layers_of(model)(torch.zeros(2, 3, 12, 12))
    assert {name: tuple(rows.shape) for name, rows in layers.items()} == {
        "res4": (2, 16),
        "flatten": (2, 32),
    }
    assert not model.training


def test_the_trunks_last_feature_and_the_heads_have_names_too() -> None:
    model = build_model(read(resolved(MODEL__HEAD__PARAMS=[]).config, ModelOptions))
    assert list(layers_of(model)(torch.zeros(1, 3, 12, 12))) == ["flatten"]
    model = build_model(read(resolved().config, ModelOptions))
    assert list(layers_of(model)(torch.zeros(1, 3, 12, 12))) == ["heads"]
    nested = [[["mlp", {"dims": [32, 2]}]], [["mlp", {"dims": [32, 2]}]]]
    model = build_model(read(resolved(MODEL__HEAD__PARAMS=nested).config, ModelOptions))
    assert list(layers_of(model)(torch.zeros(1, 3, 12, 12))) == ["heads0", "heads1"]


def test_the_newest_weights_whatever_the_pointer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, folder = resolved().config, tmp_path / "checkpoints"
    assert trained_weights(config, tmp_path) == folder / files.POINTER
    files.write({"n": 1}, folder, "model_phase0.torch", {"number": 1})
    # A run is killed after the checkpoint has its name and before the pointer is set.
    monkeypatch.setattr(files, "point_to", lambda *_: None)
    files.write({"n": 2}, folder, "model_phase1.torch", {"number": 2})
    assert trained_weights(config, tmp_path) == folder / "model_phase1.torch"
    # A file that is named is taken, and that is said.
    named = resolved(MODEL__WEIGHTS_INIT__PARAMS_FILE="other.pth").config
    with caplog.at_level("WARNING", "sslengine"):
        assert trained_weights(named, tmp_path) == Path("other.pth")
    assert f"other.pth is used, and not {folder / 'model_phase1.torch'}" in caplog.text
    # A broken one is not judged.
    (folder / "model_phase1.torch").write_bytes(b"broken")
    assert trained_weights(config, tmp_path) == folder / "model_phase0.torch"
