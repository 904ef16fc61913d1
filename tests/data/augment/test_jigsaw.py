from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sslengine.data.augment.jigsaw import (
    ImgPatchesFromTensor,
    ShuffleImgPatches,
    distinct_permutations,
    load_permutations,
)
from sslengine.data.augment.pipeline import Pipeline
from sslengine.errors import DataError


@given(
    side=st.integers(1, 4),
    jitter=st.integers(1, 6),
    patch=st.integers(1, 5),
    rest=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_patches_as_vissl_cuts_them(
    side: int, jitter: int, patch: int, rest: int, seed: int
) -> None:
    cell = patch + jitter
    image = torch.rand(3, side * cell + rest % side, side * cell + rest % side)
    torch.manual_seed(seed)
    got = ImgPatchesFromTensor(side**2, jitter)(image)
    torch.manual_seed(seed)
    offsets = torch.randint(0, jitter, (2, side, side))
    assert got.shape == (side**2, 3, patch, patch)
    number = 0
    for i in range(side):
        for j in range(side):
            left = i * cell + int(offsets[0, i, j])
            top = j * cell + int(offsets[1, i, j])
            assert torch.equal(got[number], image[:, top : top + patch, left : left + patch])
            number += 1


@pytest.mark.parametrize("given", [{"perm_file": "p.npy"}, {"num_perms": 24, "num_patches": 4}])
def test_the_permutation_that_the_label_names_restores_the_patches(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = distinct_permutations(24, 4)
    np.save("p.npy", table)
    shuffle = ShuffleImgPatches(**given)
    patches = torch.rand(4, 3, 2, 2)
    labels = []
    for seed in range(400):
        np.random.seed(seed)  # noqa: NPY002
        shuffled, label = shuffle(patches)
        restored = torch.empty_like(patches)
        restored[table[label].copy()] = shuffled
        assert torch.equal(restored, patches)
        labels.append(label)
    assert set(labels) == set(range(24))


def test_the_draw_is_vissls() -> None:
    shuffle = ShuffleImgPatches(num_perms=10, num_patches=4)
    for seed in range(20):
        np.random.seed(seed)  # noqa: NPY002
        label = shuffle(torch.rand(4, 1, 1, 1))[1]
        np.random.seed(seed)  # noqa: NPY002
        assert label == np.random.randint(10)  # noqa: NPY002


def test_a_file_may_count_from_one(tmp_path: Path) -> None:
    rows = distinct_permutations(5, 4)
    for name, counted in (("zero.npy", rows), ("one.npy", (rows + 1).astype(np.uint8))):
        np.save(tmp_path / name, counted)
        assert load_permutations(str(tmp_path / name)).tolist() == rows.tolist()


@pytest.mark.parametrize(
    "rows",
    [[[0, 1, 2], [0, 1, 1]], [[2, 3, 4]], [[0, 1, 3]], [0, 1, 2], [[0.0, 1.0]],
     np.zeros((0, 9), np.int64)],
)  # fmt: skip
def test_a_file_of_something_else(rows: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", np.array(rows))
    with pytest.raises(ValueError, match=r"perm_file: .*p\.npy: expected a perm"):
        load_permutations(str(tmp_path / "p.npy"))


def test_images_and_patches_must_fit() -> None:
    def run(*entries: dict[str, Any]) -> None:
        sample = {
            "data": [torch.zeros(3, 20, 20)],
            "data_valid": [1],
            "data_idx": [7],
            "label": [0],
        }
        Pipeline(list(entries), "here")(sample)

    cut = {"name": "ImgPatchesFromTensor", "patch_jitter": 6}
    with pytest.raises(DataError, match=r"here.0 .* sample 7: .*larger sides, got \(20, 20\)"):
        run(cut)
    shuffle = {"name": "ShuffleImgPatches", "num_perms": 2, "num_patches": 4}
    with pytest.raises(DataError, match=r"here.1 .* num_patches: expected 4 patches, got 9"):
        run({**cut, "patch_jitter": 2}, shuffle)


# ---- permutations


def distances(rows: np.ndarray) -> np.ndarray:
    return (rows[:, None] != rows[None]).sum(2)


@given(st.integers(3, 5), st.integers(2, 20), st.integers(0, 3))
def test_each_is_the_farthest_there_was(pieces: int, count: int, seed: int) -> None:
    every = np.array(list(permutations(range(pieces))))
    rows = distinct_permutations(min(count, len(every)), pieces, seed)
    for number in range(1, len(rows)):
        scores = [
            (distance.min(), distance.sum())
            for distance in (rows[:number] != each for each in every[:, None])
            for distance in [distance.sum(1)]
        ]
        mine = (rows[:number] != rows[number]).sum(1)
        assert (mine.min(), mine.sum()) == max(scores)


def test_nine_patches_differ_everywhere_while_they_can() -> None:
    rows = distinct_permutations(64)
    assert distances(rows[:4])[~np.eye(4, dtype=bool)].tolist() == [9] * 12
    apart = distances(rows)[~np.eye(64, dtype=bool)]
    assert apart.min() >= 7
    assert apart.mean() > 8.1


def test_the_same_on_every_machine() -> None:
    assert distinct_permutations(3).tolist() == [
        [5, 7, 0, 4, 2, 3, 6, 1, 8],
        [6, 1, 3, 7, 4, 8, 2, 5, 0],
        [4, 5, 8, 2, 6, 0, 3, 7, 1],
    ]
    assert distinct_permutations(3, seed=1).tolist() != distinct_permutations(3).tolist()
