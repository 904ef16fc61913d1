"""Features that are given or stored: shapes that fit, and shards on the disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sslengine.errors import DataError
from sslengine.evaluate import store as module
from sslengine.evaluate.features import check_features
from sslengine.evaluate.store import Shard, Store, short_name


def filled(folder: Path, rows: torch.Tensor, dtype: str = "float32") -> Store:
    """Shards of 4 images; image 5 could not be read."""
    store = Store.make(folder, {"weights": "abc"}, len(rows), dtype)
    for shard in store.missing():
        images = torch.tensor([image for image in shard.images if image != 5])
        store.write(shard, {"flatten": rows[images]}, images % 3, images)
    return store


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALLEST", 4)
    monkeypatch.setattr(module, "LARGEST", 4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_are_those_that_were_written(tmp_path: Path, dtype: str) -> None:
    rows = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    filled(tmp_path, rows, dtype)
    store = Store.read(tmp_path)
    readable = [image for image in range(10) if image != 5]
    wanted = rows[readable].to(getattr(torch, dtype))
    found = store.layer("flatten")
    assert found.shape == (9, 3)
    assert len(found) == 9
    for start in range(10):
        for stop in range(start, 10):
            assert torch.equal(found[start:stop], wanted[start:stop])
    assert torch.equal(found.tensor(), wanted)
    assert store.indices.tolist() == readable
    assert store.targets.tolist() == [image % 3 for image in readable]


def test_indicators_of_several_classes(tmp_path: Path) -> None:
    store = Store.make(tmp_path, {}, 4)
    rows = torch.tensor([[1, 0, -1]] * 4, dtype=torch.int8)
    store.write(store.missing()[0], {"flatten": torch.zeros(4, 2)}, rows, torch.arange(4))
    assert torch.equal(Store.read(tmp_path).targets, rows)


def test_other_programs_read_a_shard(tmp_path: Path) -> None:
    rows = torch.arange(20.0).view(10, 2)
    filled(tmp_path, rows)
    assert np.array_equal(np.load(tmp_path / "00000.flatten.npy"), rows[:4].numpy())
    assert json.loads((tmp_path / "manifest.json").read_text())["depends_on"] == {"weights": "abc"}


def test_a_shard_without_its_indices_is_missing(tmp_path: Path) -> None:
    """They are written last."""
    store = filled(tmp_path, torch.zeros(10, 2))
    assert store.missing() == []
    (tmp_path / "00001.indices.npy").unlink()
    assert Store.read(tmp_path).missing() == [Shard(1, range(4, 8))]
    with pytest.raises(DataError, match="1 of 3 shards are missing"):
        Store.read(tmp_path).layer("flatten")


def test_a_store_of_something_else_is_left_alone(tmp_path: Path) -> None:
    filled(tmp_path, torch.zeros(10, 2))
    with pytest.raises(DataError, match="features of something else"):
        Store.make(tmp_path, {"weights": "abc"}, 11)
    with pytest.raises(DataError, match="features of something else"):
        Store.make(tmp_path, {"weights": "abd"}, 10)
    assert short_name({"weights": "abc"}) != short_name({"weights": "abd"})


# ---- Features and labels that do not fit are refused, each with what is wrong.


TRAIN, LABELS, TEST = torch.ones(4, 3), torch.tensor([0, 1, 1, 0]), torch.ones(2, 3)
NAN = torch.full((2, 3), float("nan"))


@pytest.mark.parametrize(
    ("train", "labels", "test", "message"),
    [
        (TRAIN, LABELS[:3], TEST, r"one label for each of the 4 .* of shape \(3,\)"),
        (TRAIN, LABELS[:, None, None], TEST,
         r"one label for each of the 4 .* of shape \(4, 1, 1\)"),
        (TRAIN, 7 + LABELS[:, None], TEST, "expected indicators 1, 0, or -1"),
        (TRAIN, LABELS - 1, TEST, "class numbers, 0 and up"),
        (TRAIN[:0], LABELS[:0], TEST, "class numbers, 0 and up"),
        (TRAIN, LABELS, torch.ones(2, 5), r"shape \(3,\) cannot .* shape \(5,\)"),
        (TRAIN * float("inf"), LABELS, TEST, "some training features are NaN or infinite"),
        (TRAIN, LABELS, NAN, "some test features are NaN or infinite"),
    ],
)  # fmt: skip
def test_what_does_not_fit(
    train: torch.Tensor, labels: torch.Tensor, test: torch.Tensor, message: str
) -> None:
    with pytest.raises(DataError, match=f"Judge: .*{message}"):
        check_features("Judge", train, labels, test)
