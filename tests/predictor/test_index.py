from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.predictor import index as module
from sslengine.predictor.index import Index, key_of, load_or_make, unit_length


def test_nearest_is_by_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 2)  # in several pieces
    rows = torch.tensor([[1.0, 0.0], [0.0, 5.0], [-2.0, 0.0], [3.0, 3.0], [0.0, -1.0]])
    index = Index(unit_length(rows), None, torch.arange(len(rows)))
    similar, numbers = index.nearest(torch.tensor([10.0, 1.0]), 3)
    assert numbers == [0, 3, 1]
    norm = 101**0.5
    assert similar == pytest.approx([10 / norm, 11 / norm / 2**0.5, 1 / norm], abs=1e-6)
    assert len(index.nearest(torch.tensor([1.0, 0.0]), 99)[1]) == 5


def _dataset(names: list[str], labels: tuple[int, ...] = (0, 1)) -> Any:
    source = SimpleNamespace(path=lambda row: names[row], files_of=lambda rows: ())
    return SimpleNamespace(sources=[source], rows=range(len(names)), labels=[np.array(labels)])


def test_the_key_knows_checkpoint_transforms_images_and_labels() -> None:
    keys = {
        key_of("abc", [{"size": 8}], _dataset(["a", "b"])),
        key_of("abd", [{"size": 8}], _dataset(["a", "b"])),
        key_of("abc", [{"size": 9}], _dataset(["a", "b"])),
        key_of("abc", [{"size": 8}], _dataset(["a", "c"])),
        key_of("abc", [{"size": 8}], _dataset(["b", "a"])),
        key_of("abc", [{"size": 8}], _dataset(["a", "b"], (1, 0))),
    }
    assert len(keys) == 6
    assert key_of("abc", [{"size": 8}], _dataset(["a", "b"])) in keys


def test_it_is_made_when_there_is_none_of_this_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, made = tmp_path / "predictor" / "index.torch", []

    def make() -> Index:
        made.append(1)
        return Index(torch.eye(2), torch.tensor([len(made), 7]), torch.arange(2))

    load_or_make(path, "one", make)
    again = load_or_make(path, "one", make)
    assert again.labels is not None
    assert (len(made), again.labels.tolist()) == (1, [1, 7])
    assert torch.equal(again.features, torch.eye(2))
    load_or_make(path, "two", make)
    assert len(made) == 2
    path.write_bytes(b"half a file")
    load_or_make(path, "two", make)
    assert len(made) == 3
    assert "cannot be read" in caplog.text
    load_or_make(path, "two", make)
    assert len(made) == 3
    path.unlink()
    os.mkfifo(path)
    load_or_make(path, "two", make)
    assert "index.torch is a FIFO" in caplog.text
    assert path.is_file()


def test_a_folder_that_cannot_be_written_costs_the_next_start_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "predictor").write_text("a file where the folder should be")
    made = Index(torch.eye(2), None, torch.arange(2))
    assert load_or_make(tmp_path / "predictor" / "index.torch", "key", lambda: made) is made
    assert "cannot be written" in caplog.text
