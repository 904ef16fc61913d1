from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sslengine.engines.extract_features import chunks, extract_features
from sslengine.engines.features import Features
from sslengine.engines.train import train
from tests.engines.runs import make_run, screen
from tests.engines.test_evaluate import FROZEN, SHAPES
from tests.engines.test_features import LABELLED


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


@pytest.mark.parametrize(("images", "sizes"), [(-1, [6]), (0, [2, 2, 2]), (3, [4, 2]), (6, [6])])
def test_batches_are_put_together_until_there_are_enough(images: int, sizes: list[int]) -> None:
    batches = [Features({"a": torch.ones(2, 1)}, torch.zeros(2), torch.arange(2)) for _ in range(3)]
    assert [len(chunk.indices) for chunk in chunks(iter(batches), images)] == sizes
