"""Which images of a source are used: held out, limited, of few labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.subset import draw_limited, draw_of_each_class
from sslengine.data.options import DataLimitSampling, HoldOut, SplitOptions
from sslengine.errors import DataError
from tests.data.pictures import write_picture, write_tree

LABELS = np.array([0] * 5 + [7] * 20 + [3] * 10)


def rows(limit: int, labels: np.ndarray | None = LABELS, **sampling: object) -> list[int]:
    options = SplitOptions(
        DATA_LIMIT=limit,
        DATA_LIMIT_SAMPLING=DataLimitSampling(**sampling),  # type: ignore[arg-type]
    )
    return list(draw_limited(options, "TRAIN", len(LABELS), labels))


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


@pytest.mark.parametrize(
    ("limit", "keys", "labels"),
    [
        (36, {}, LABELS),
        (30, {"SKIP_NUM_SAMPLES": 6}, LABELS),
        (3, {"IS_BALANCED": True}, None),
        (18, {"IS_BALANCED": True}, LABELS),  # more than a class has
        (2, {"IS_BALANCED": True}, LABELS),  # fewer than classes
    ],
)
def test_limits_that_cannot_be(limit: int, keys: dict[str, Any], labels: Any) -> None:
    with pytest.raises(DataError, match="TRAIN.DATA_LIMIT"):
        rows(limit, labels, **keys)


@pytest.fixture(scope="module")
def images(tmp_path_factory: Any) -> Path:
    """20 images of a, 10 of b, 3 of c, named as ImageNet's are, but for the last of c."""
    root: Path = tmp_path_factory.mktemp("images")
    for name, count in (("a", 20), ("b", 10), ("c", 3)):
        for number in range(count):
            write_picture(root / name / f"{name}_{number}.png", number, 8)
    (root / "c" / "c_2.png").rename(root / "c" / "a_0.png")
    return root


def _set(
    root: Path, hold_out: HoldOut | None = None, split: str = "TRAIN", **given: Any
) -> SSLDataset:
    options = SplitOptions(
        DATA_SOURCES=["disk_folder"], DATA_PATHS=[str(root)], LABEL_SOURCES=["disk_folder"],
        TRANSFORMS=[{"name": "ToTensor"}], DATA_LIMIT_SAMPLING=DataLimitSampling(**given),
    )  # fmt: skip
    return SSLDataset(options, split, seed=0, hold_out=hold_out)


def _paths(dataset: SSLDataset) -> list[str]:
    parts = (Path(dataset.name(number)).parts[-2:] for number in range(len(dataset)))
    return ["/".join(each) for each in parts]


def test_a_share_of_each_class_and_all_its_classes(images: Path) -> None:
    used = _set(images, SHARE=0.1)
    assert np.bincount(used.labels[0]).tolist() == [2, 1, 1]
    assert used.classes[0].names == ("a", "b", "c")
    every = torch.from_numpy(np.asarray(_set(images).labels[0]))
    assert used.rows.tolist() == draw_of_each_class(every, 0.1, 0).tolist()
    assert (
        _paths(used) == _paths(_set(images, SHARE=0.1)) != _paths(_set(images, SHARE=0.1, SEED=1))
    )
    assert len(_set(images, SHARE=1.0)) == 33


def test_names_as_in_simclrs_lists(images: Path, tmp_path: Path) -> None:
    """In any order, with the end of lines of any system."""
    names = tmp_path / "1percent.txt"
    names.write_bytes(b"b_7.png\r\na_13.png\r\n./c/a_0.png\r\na/a_0.png\n\n")
    used = _set(images, LIST=str(names))
    assert _paths(used) == ["a/a_0.png", "a/a_13.png", "b/b_7.png", "c/a_0.png"]
    assert used.labels[0].tolist() == [0, 0, 1, 2]
    assert len(used.classes[0].names) == 3
    # What is held out is not trained on, listed or not; and the other part is that of TEST.
    halves = [
        _set(images, HoldOut(SHARE=0.5), split, LIST=str(names)) for split in ("TRAIN", "TEST")
    ]
    assert sorted(_paths(halves[0]) + _paths(halves[1])) == sorted(_paths(used))


def test_paths_in_a_table(images: Path, tmp_path: Path) -> None:
    table = tmp_path / "LABELLED.CSV"
    table.write_text(f"number,path,label\n0,{images}/b/b_1.png,b\n9,{images}/a/a_2.png,a\n")
    assert _paths(_set(images, LIST=str(table))) == ["a/a_2.png", "b/b_1.png"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a_0.png\n", r"a_0.png is both .*c/a_0.png and .*a/a_0.png. Put the folder before"),
        ("a_1.png\nx.png\nz.png\n", r"2 of 3 images are not in the data, the first is x.png"),
        ("\n", "names no image; an image's path is for example"),
    ],
)
def test_what_cannot_be_found(images: Path, tmp_path: Path, text: str, message: str) -> None:
    names = tmp_path / "names.txt"
    names.write_text(text)
    with pytest.raises(DataError, match=message):
        _set(images, LIST=str(names))


def table(root: Path, count: int) -> dict[str, Any]:
    """Three images of each patient, a third of them of one class. Some values have a space."""
    names = [f"{number}.png" for number in range(count)]
    write_tree(root, *names)
    lines = [f"{name},{('ill', 'well', 'well')[number % 3]},{' ' * (number % 2)}{number // 3}"
             for number, name in enumerate(names)]  # fmt: skip
    (root / "list.csv").write_text("\n".join(["path,label,patient", *lines]))
    return {"DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": [str(root / "list.csv")]}


LABELLED: dict[str, Any] = {"LABEL_SOURCES": ["csv_filelist"]}


def split(
    keys: dict[str, Any], hold_out: HoldOut, train: dict[str, Any], test: dict[str, Any]
) -> tuple[SSLDataset, SSLDataset]:
    return (
        SSLDataset(SplitOptions(**keys, **train), "TRAIN", 0, hold_out=hold_out),
        SSLDataset(SplitOptions(**keys, **test), "TEST", 1, hold_out=hold_out),
    )


UNLABELLED: dict[str, Any] = {"LABEL_TYPE": "sample_index"}


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("train", [LABELLED, {**LABELLED, **UNLABELLED}])
def test_each_image_is_in_one_split(
    tmp_path: Path, stratified: bool, train: dict[str, Any]
) -> None:
    hold_out = HoldOut(SHARE=0.2, STRATIFIED=stratified)
    ours, theirs = split(table(tmp_path, 30), hold_out, train, LABELLED)
    assert sorted([*ours.rows, *theirs.rows]) == list(range(30))
    assert len(theirs) == 6
    assert theirs.labels[0].tolist() == [0 if row % 3 == 0 else 1 for row in theirs.rows]  # type: ignore[union-attr]
    if stratified:
        assert np.bincount(theirs.labels[0]).tolist() == [2, 4]
    again = split(table(tmp_path, 30), hold_out, train, LABELLED)
    assert list(again[1].rows) == list(theirs.rows)
    other = HoldOut(SHARE=0.2, STRATIFIED=stratified, SEED=1)
    assert list(split(table(tmp_path, 30), other, train, LABELLED)[1].rows) != list(theirs.rows)


def test_a_file_of_several_splits_gives_images_of_train(tmp_path: Path) -> None:
    images = np.arange(10 * 4 * 4 * 3, dtype=np.uint8).reshape(10, 4, 4, 3)
    np.savez(tmp_path / "sets.npz", train_images=images, test_images=images[:3] * 0)
    keys = {"DATA_SOURCES": ["array_file"], "DATA_PATHS": [str(tmp_path / "sets.npz")]}
    ours, theirs = split(keys, HoldOut(SHARE=0.4), UNLABELLED, UNLABELLED)
    assert (len(ours), len(theirs)) == (6, 4)
    for number, row in enumerate(theirs.rows):
        assert np.array_equal(np.asarray(theirs[0, number]["data"][0]), images[int(row)])


def test_groups_are_kept_whole(tmp_path: Path) -> None:
    hold_out = HoldOut(SHARE=0.25, GROUP_COLUMN="patient")
    ours, theirs = split(table(tmp_path, 30), hold_out, UNLABELLED, UNLABELLED)
    assert not {row // 3 for row in ours.rows} & {row // 3 for row in theirs.rows}
    assert len(theirs) == 6
    with pytest.raises(DataError, match=r"HOLD_OUT.GROUP_COLUMN: .*no column 'patent'.*'patient'"):
        split(table(tmp_path, 3), HoldOut(SHARE=0.5, GROUP_COLUMN="patent"), UNLABELLED, UNLABELLED)
    folder = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(tmp_path)]}
    with pytest.raises(DataError, match=r"HOLD_OUT.GROUP_COLUMN: FolderSource "):
        split(folder, hold_out, UNLABELLED, UNLABELLED)


@pytest.mark.parametrize("options", [HoldOut(SHARE=0.01), HoldOut(SHARE=0.99)])
def test_a_split_without_images(tmp_path: Path, options: HoldOut) -> None:
    with pytest.raises(DataError, match="HOLD_OUT.SHARE"):
        split(table(tmp_path, 12), options, UNLABELLED, UNLABELLED)


def test_a_class_of_one_image_is_trained_on(tmp_path: Path) -> None:
    keys = table(tmp_path, 4)
    (tmp_path / "list.csv").write_text("path,label\n0.png,a\n1.png,b\n2.png,b\n3.png,b\n")
    hold_out = HoldOut(SHARE=0.6, STRATIFIED=True)
    ours, theirs = split(keys, hold_out, LABELLED, LABELLED)
    assert (ours.labels[0].tolist(), theirs.labels[0].tolist()) == ([0, 1], [1, 1])  # type: ignore[union-attr]
