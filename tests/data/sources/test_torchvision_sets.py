from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets

from sslengine.data.options import SplitOptions
from sslengine.data.pixel_format import output_channels, probe
from sslengine.data.sources.torchvision_sets import LABELS, TorchvisionSource
from sslengine.errors import DataError


def source(root: Path, name: str, split: str = "TRAIN") -> TorchvisionSource:
    return TorchvisionSource(SplitOptions(DATA_PATHS=[str(root)], DATASET_NAMES=[name]), split)


def write_mnist(root: Path, part: str, images: np.ndarray, labels: np.ndarray) -> None:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">IIII", 0x0803, *images.shape)
    (raw / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
    (raw / f"{part}-labels-idx1-ubyte").write_bytes(
        struct.pack(">II", 0x0801, len(labels)) + labels.tobytes()
    )


def test_mnist_as_rgb_with_its_labels(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    counts = {"TRAIN": 5, "TEST": 3}
    images = {each: draw.integers(0, 256, (counts[each], 28, 28), np.uint8) for each in counts}
    for split, part in (("TRAIN", "train"), ("TEST", "t10k")):
        labels = np.arange(counts[split], dtype=np.uint8) + 2
        write_mnist(tmp_path, part, images[split], labels)
    for split, count in counts.items():
        mnist = source(tmp_path, "MNIST", split)
        assert len(mnist) == count
        assert mnist.labels().tolist() == list(range(2, 2 + count))
        assert mnist.label(1) == 3
        assert mnist.num_classes == count + 2
        assert list(mnist.class_names)[7] == "7 - seven"  # although the split has fewer classes
        pixels = np.asarray(mnist.image(2))
        np.testing.assert_array_equal(pixels, np.repeat(images[split][2][..., None], 3, axis=2))


def test_image_modes(tmp_path: Path) -> None:
    """MNIST has grey levels: L and stored keep a single channel."""
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    for part in ("train", "t10k"):
        write_mnist(tmp_path, part, images, np.zeros(5, np.uint8))
    for mode in ("L", "stored"):
        options = SplitOptions(
            DATA_PATHS=[str(tmp_path)], DATASET_NAMES=["MNIST"], IMAGE_MODE=mode,
            DATA_SOURCES=["torchvision_dataset"], TRANSFORMS=[{"name": "ToTensor"}],
        )  # fmt: skip
        mnist = TorchvisionSource(options, "TRAIN")
        np.testing.assert_array_equal(np.asarray(mnist.image(2)), images[2])
        assert mnist.stand_in(8).mode == "L"
        assert output_channels(options, "TRAIN", probe(options, "TRAIN")) == 1
        assert not list(options.check_chosen())


def test_the_pixels_are_shared_with_workers(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    draw = np.random.default_rng(0)
    meta = {"label_names": [str(number) for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta))
    for number in range(1, 6):
        data = draw.integers(0, 256, (20, 3072), dtype=np.uint8)
        content = {"data": data, "labels": [number] * 20}
        (folder / f"data_batch_{number}").write_bytes(pickle.dumps(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchvision.datasets.CIFAR10, "_check_integrity", lambda _: True)
        patch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
        cifar = source(tmp_path, "CIFAR10")
    assert len(pickle.dumps(cifar)) < 5000
    again = pickle.loads(pickle.dumps(cifar))
    expected = data[19].reshape(3, 32, 32).transpose(1, 2, 0)
    for each in (cifar, again):
        np.testing.assert_array_equal(np.asarray(each.image(99)), expected)
        assert each.label(99) == 5


@pytest.mark.parametrize("name", ["STL10", "SVHN"])
@pytest.mark.parametrize("split", ["TRAIN", "TEST"])
def test_sets_that_know_splits(name: str, split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stand:
        labels = np.array([1, 0])

        def __init__(self, root: str, split: str, download: bool) -> None:
            self.asked = (root, split, download)

        def __len__(self) -> int:
            return 2

    monkeypatch.setattr(torchvision.datasets, name, Stand)
    opened: Any = source(Path("/data"), name, split)
    assert opened._set.asked == ("/data", split.lower(), False)
    assert opened.labels().tolist() == [1, 0]


@pytest.mark.parametrize("name", sorted(LABELS))
def test_nothing_is_downloaded(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"{name} is not in .*download=True"):
        source(tmp_path, name)


def test_an_unknown_set(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"DATASET_NAMES.0: expected one of .*Did you mean 'CIFAR10'"
    ):
        source(tmp_path, "cifar-10")
    with pytest.raises(DataError, match=r"got ''"):
        TorchvisionSource(SplitOptions(), "TRAIN")
