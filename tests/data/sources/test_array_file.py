"""Images in one array: shapes, types, splits, and the format that MNIST is shipped in."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets

from sslengine.data.options import split_options
from sslengine.data.sources.array_file import ArraySource
from sslengine.errors import DataError
from tests.data.sources.test_torchvision_sets import write_mnist


def images(*shape: int, dtype: str = "uint8") -> Any:
    most = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else 1
    return (np.random.default_rng(0).random(shape) * most).astype(dtype)


def source(path: Path, split: str = "TRAIN", **keys: Any) -> ArraySource:
    return ArraySource(split_options(DATA_PATHS=[str(path)], **keys), split)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("shape", [(5, 9, 9, 3), (5, 9, 7, 3), (5, 9, 9), (5, 9, 7, 1)])
def test_channels_last_and_none(tmp_path: Path, shape: tuple[int, ...]) -> None:
    given = images(*shape)
    np.save(tmp_path / "images.npy", given)
    found = source(tmp_path / "images.npy")
    rgb = np.broadcast_to(given.reshape(5, 9, shape[2], -1), (5, 9, shape[2], 3))
    assert [found.image(n).mode for n in range(5)] == ["RGB"] * 5
    assert (np.stack([np.asarray(found.image(n)) for n in range(5)]) == rgb).all()


@pytest.mark.parametrize("shape", [(5, 3, 9, 9), (5, 3, 9, 7), (5, 13, 9, 9)])
@pytest.mark.parametrize("dtype", ["uint8", ">u2", "float32", "int16"])
def test_channels_first_with_all_values(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    given = images(*shape, dtype=dtype)
    np.save(tmp_path / "images.npy", given)
    found = source(tmp_path / "images.npy", IMAGE_MODE="stored")
    for number in (0, 4):
        image = found.image(number)
        assert (np.asarray(image) == np.moveaxis(given[number], 0, -1)).all()
        assert image.dtype == (np.uint8 if dtype == "uint8" else np.float32)  # type: ignore[attr-defined]
    assert found.stand_in(4).shape == (4, 4, shape[1])


@pytest.mark.parametrize(
    "shape", [(5, 9), (5, 9, 9, 9), (5, 13, 9, 7), (5, 3, 9, 4), (5, 2, 2, 2, 2)]
)
def test_what_could_be_either_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "images.npy", images(*shape))
    with pytest.raises(DataError, match="expected N x height x width"):
        source(tmp_path / "images.npy")


def test_values_of_more_than_8_bits_are_not_narrowed_unasked(tmp_path: Path) -> None:
    given = np.array([[[0, 1024], [2048, 4095]]], np.uint16)
    np.save(tmp_path / "images.npy", given)
    with pytest.raises(Exception, match=r"DATA.TRAIN.PIXEL_RANGE"):
        source(tmp_path / "images.npy").image(0)
    found = source(tmp_path / "images.npy", PIXEL_RANGE=[0, 4095]).image(0)
    assert np.asarray(found)[..., 0].tolist() == [[0, 64], [128, 255]]
    four = save(tmp_path / "four.npz", images=images(5, 9, 9, 4))
    with pytest.raises(Exception, match="4 bands.*IMAGE_MODE to stored"):
        source(four).image(0)


def test_a_npy_goes_to_workers_as_a_reference(tmp_path: Path) -> None:
    given = images(50, 32, 32, 3)
    np.save(tmp_path / "images.npy", given)
    found = source(tmp_path / "images.npy")
    sent = pickle.dumps(found)
    assert len(sent) < 5_000
    assert (np.asarray(pickle.loads(sent).image(49)) == given[49]).all()
    np.save(tmp_path / "fortran.npy", np.asfortranarray(given))
    assert (np.asarray(source(tmp_path / "fortran.npy").image(49)) == given[49]).all()


MEDMNIST = {
    f"{split}_{kind}": np.full((count, 9, 9) if kind == "images" else (count, 1), number, np.uint8)
    for number, (split, count) in enumerate({"train": 4, "val": 3, "test": 2}.items())
    for kind in ("images", "labels")
}
KERAS = {"x_train": images(4, 9, 9), "y_train": np.arange(4), "x_test": images(2, 9, 9),
         "y_test": np.arange(2)}  # fmt: skip


@pytest.mark.parametrize(("arrays", "lengths"), [(MEDMNIST, (4, 3)), (KERAS, (4, 2))])
def test_each_split_has_its_arrays(
    tmp_path: Path, arrays: dict[str, Any], lengths: tuple[int, int]
) -> None:
    file = save(tmp_path / "all.npz", **arrays)
    for split, length in zip(("TRAIN", "TEST"), lengths, strict=True):
        found = source(file, split)
        assert len(found) == length
        assert found.labels().shape == (length,)
    assert source(file, "TEST").labels().tolist() == ([1, 1, 1] if lengths[1] == 3 else [0, 1])


@pytest.mark.parametrize("row", [[3, 17], [0, 255], [0, 256]])
def test_rows_of_class_numbers_are_no_indicators(tmp_path: Path, row: list[int]) -> None:
    file = save(tmp_path / "a.npz", images=images(2, 9, 9), labels=np.array([row, row]))
    with pytest.raises(DataError, match=r"a.npz: rows .* 1, 0, or -1 .* holds (3|255|256)\."):
        source(file)


def test_labels_are_of_the_split_of_the_images(tmp_path: Path) -> None:
    """Of x_val, without labels, and x_test with y_test the first is TEST."""
    arrays = {**KERAS, "x_val": images(3, 9, 9)}
    found = source(save(tmp_path / "a.npz", **arrays), "TEST")
    assert len(found) == 3
    with pytest.raises(DataError, match="labels are asked for"):
        found.labels()
    with_name = source(tmp_path / "a.npz", "TEST", LABEL_COLUMN="y_test")
    assert with_name.labels().tolist() == [0, 1]


def test_arrays_by_name(tmp_path: Path) -> None:
    file = save(tmp_path / "a.npz", photos=images(2, 9, 9), kinds=np.array([1, 0]))
    with pytest.raises(DataError, match=r"(?s)which array .*IMAGE_COLUMN.*kinds, photos"):
        source(file)
    with pytest.raises(DataError, match="no column 'photo'. Did you mean 'photos'"):
        source(file, IMAGE_COLUMN="photo")
    found = source(file, IMAGE_COLUMN="photos")
    with pytest.raises(DataError, match="labels are asked for"):
        found.labels()
    assert source(file, IMAGE_COLUMN="photos", LABEL_COLUMN="kinds").labels().tolist() == [1, 0]
    alone = save(tmp_path / "b.npz", arr_0=images(2, 9, 9))
    assert len(source(alone)) == 2


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_as_torchvision_reads_it(tmp_path: Path, packed: bool) -> None:
    pixels = images(6, 28, 28)
    for part, count in (("train", 6), ("t10k", 4)):
        write_mnist(tmp_path, part, pixels[:count], np.arange(count, dtype=np.uint8))
    folder = tmp_path / "MNIST" / "raw"
    expected = datasets.MNIST(str(tmp_path), train=False)
    if packed:
        for file in list(folder.iterdir()):
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    found = source(folder, "TEST")
    assert found.labels().tolist() == expected.targets.tolist()
    grey = np.stack([np.asarray(found.image(n))[..., 0] for n in range(len(found))])
    assert torch.equal(torch.from_numpy(grey), expected.data)
    single = next(folder.glob("train-images*"))
    assert source(single, "TEST").labels().tolist() == list(range(6))


def test_what_is_no_array(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"no array")
    (tmp_path / "a.npz").write_bytes(b"no archive")
    for name in ("a.npy", "a.npz"):
        with pytest.raises(DataError, match=f"{name} cannot be read"):
            source(tmp_path / name)
    np.savez_compressed(tmp_path / "damaged.npz", images=np.arange(999.0).reshape(9, 3, 37))
    held = bytearray((tmp_path / "damaged.npz").read_bytes())
    held[60:160] = bytes(100)
    (tmp_path / "damaged.npz").write_bytes(held)
    with pytest.raises(DataError, match=r"damaged.npz cannot be read"):
        source(tmp_path / "damaged.npz")
    with pytest.raises(DataError, match=r"b.npy is not there: .* has no 'b.npy'"):
        source(tmp_path / "b.npy")
    with pytest.raises(DataError, match=r"no file of images in the IDX format for TRAIN"):
        source(tmp_path)
    cut = tmp_path / "train-images-idx3-ubyte"
    cut.write_bytes(bytes([0, 0, 8, 3, *(0, 0, 0, 2) * 3, 1, 2, 3]))
    with pytest.raises(DataError, match="says that it holds 8 values, and has 3"):
        source(cut)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(DataError, match="objects.npy cannot be read"):
        source(tmp_path / "objects.npy")
