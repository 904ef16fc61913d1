from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.subset import choose_rows
from sslengine.data.options import DataLimitSampling, SplitOptions
from sslengine.errors import DataError

LABELS = np.array([0] * 5 + [7] * 20 + [3] * 10)


def rows(limit: int, labels: np.ndarray | None = LABELS, **sampling: object) -> list[int]:
    options = SplitOptions(
        DATA_LIMIT=limit,
        DATA_LIMIT_SAMPLING=DataLimitSampling(**sampling),  # type: ignore[arg-type]
    )
    return list(choose_rows(options, "TRAIN", len(LABELS), labels))


def test_all_by_default() -> None:
    assert rows(-1) == rows(len(LABELS)) == list(range(35))


def test_a_random_subset_is_the_one_of_numpys_frozen_generator() -> None:
    np.random.seed(4)  # noqa: NPY002 (what VISSL seeds and draws from)
    expected = np.random.choice(35, size=12, replace=False)  # noqa: NPY002
    assert rows(12, SEED=4) == expected.tolist()
    assert rows(12, SEED=5) != expected.tolist()


def test_skipping_gives_disjoint_subsets() -> None:
    first, second = rows(20, SEED=1), rows(15, SEED=1, SKIP_NUM_SAMPLES=20)
    assert sorted(first + second) == list(range(35))


def test_balanced() -> None:
    chosen = rows(14, IS_BALANCED=True, SEED=2)
    assert len(set(chosen)) == 14
    assert [int((LABELS[chosen] == label).sum()) for label in (0, 3, 7)] == [5, 5, 4]
    others = rows(5, IS_BALANCED=True, SEED=2, SKIP_NUM_SAMPLES=9)
    assert not set(others) & set(rows(9, IS_BALANCED=True, SEED=2))


def test_no_class_is_none() -> None:
    """-1 in a .npy of labels."""
    labels = np.where(np.arange(35) % 5 == 0, -1, LABELS)
    chosen = rows(9, labels, IS_BALANCED=True)
    assert np.bincount(labels[chosen]).tolist() == [3, 0, 0, 3, 0, 0, 0, 3]
    with pytest.raises(DataError, match="cannot be balanced over 0 classes"):
        rows(9, np.full(35, -1), IS_BALANCED=True)


def test_no_class_is_none_of_a_file(tmp_path: Path) -> None:
    labels = np.arange(40) % 4 - 1
    np.savez(tmp_path / "set.npz", images=np.zeros((40, 4, 4, 3), np.uint8), labels=labels)
    options = SplitOptions(
        DATA_SOURCES=["array_file"], DATA_PATHS=[str(tmp_path / "set.npz")],
        LABEL_SOURCES=["array_file"], DATA_LIMIT=9,
        DATA_LIMIT_SAMPLING=DataLimitSampling(IS_BALANCED=True),
    )  # fmt: skip
    chosen = SSLDataset(options, "TRAIN", 0).rows
    assert np.bincount(labels[list(chosen)]).tolist() == [3, 3, 3]


def test_the_global_stream_is_left_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.rand()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    rows(12)
    assert np.random.rand() == expected  # noqa: NPY002


def test_what_cannot_be() -> None:
    with pytest.raises(
        DataError, match=r"TRAIN.DATA_LIMIT: requires 36 samples; the dataset has 35"
    ):
        rows(36)
    with pytest.raises(DataError, match=r"30 samples after 6 skipped ones; the dataset has 35"):
        rows(30, SKIP_NUM_SAMPLES=6)
    with pytest.raises(DataError, match=r"IS_BALANCED needs LABEL_SOURCES"):
        rows(3, labels=None, IS_BALANCED=True)
    with pytest.raises(DataError, match=r"requires 6 samples of class 0; it has 5"):
        rows(18, IS_BALANCED=True)
    with pytest.raises(DataError, match=r"2 samples cannot be balanced over 3 classes"):
        rows(2, IS_BALANCED=True)
