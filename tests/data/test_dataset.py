from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.data.dataset import SSLDataset, collate_seeded
from sslengine.data.options import SplitOptions
from sslengine.data.seeding import seed_sample
from sslengine.errors import DataError
from tests.data.pictures import picture, write_picture, write_tree

DRAW = {"name": "tests.data.probes:DrawProbe"}


def dataset(root: Path, seed: int = 0, **keys: Any) -> SSLDataset:
    keys = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(root)], **keys}
    return SSLDataset(SplitOptions(LABEL_SOURCES=keys["DATA_SOURCES"], **keys), "TRAIN", seed)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(tmp_path, "a/0.png", "a/1.png", "b/2.png", "c/3.png")


def test_a_sample_is_as_in_vissl(root: Path) -> None:
    sample = dataset(root)[0, 2]
    assert {key: value for key, value in sample.items() if key != "data"} == {
        "data_valid": [1],
        "data_idx": [2],
        "label": [1],
    }
    assert [image.tobytes() for image in sample["data"]] == [picture(2).tobytes()]


def test_several_sources(root: Path) -> None:
    two = dataset(root, DATA_SOURCES=["disk_folder"] * 2, DATA_PATHS=[str(root)] * 2)
    sample = two[0, 3]
    assert [len(values) for values in sample.values()] == [2, 2, 2, 2]
    assert sample["data_idx"] == [3, 3]
    assert sample["label"] == [2, 2]


def test_what_its_loader_workers_need_is_named(root: Path) -> None:
    two = dataset(root, DATA_SOURCES=["disk_folder"] * 2, DATA_PATHS=[str(root)] * 2)
    assert two.worker_modules == ("sslengine.data.plan.pil", "sslengine.data.sources.disk")


def test_a_subset_keeps_images_and_labels_together(root: Path) -> None:
    limited = dataset(root, DATA_LIMIT=3)
    assert len(limited) == 3
    for index, row in enumerate(limited.rows):
        sample = limited[0, index]
        assert sample["data"][0].tobytes() == picture(int(row)).tobytes()
        assert sample["label"] == [[0, 0, 1, 2][row]]
        assert sample["data_idx"] == [index]


def test_sample_index_counts_within_the_subset(root: Path) -> None:
    limited = dataset(root, DATA_LIMIT=3, LABEL_TYPE="sample_index")
    assert [limited[0, index]["label"] for index in range(3)] == [[0], [1], [2]]


def test_rows_of_class_indicators_become_tensors(root: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.array([[1, 0], [0, 1], [1, 1], [0, 0]]))
    options = SplitOptions(
        DATA_SOURCES=["disk_folder"],
        DATA_PATHS=[str(root)],
        LABEL_SOURCES=["disk_filelist"],
        LABEL_PATHS=[str(tmp_path / "labels.npy")],
    )
    (label,) = SSLDataset(options, "TRAIN", 0)[0, 2]["label"]
    assert torch.equal(label, torch.tensor([1, 1]))


def test_unreadable_images_are_grey_and_marked(root: Path) -> None:
    whole = write_picture(root / "x" / "whole.png", 9, side=64)
    for name, content in {
        "cut.png": whole.read_bytes()[: whole.stat().st_size // 2],
        "empty.png": b"",
        "text.jpg": b"not an image",
    }.items():
        (root / "x" / name).write_bytes(content)
    (root / "x" / "gone.png").symlink_to("nowhere.png")
    data = dataset(root, DEFAULT_GRAY_IMG_SIZE=12)
    names = [Path(data.sources[0].path(index)).name for index in range(len(data))]
    samples = [data[0, index] for index in range(len(data))]
    valid = {name: sample["data_valid"][0] for name, sample in zip(names, samples, strict=True)}
    bad = {"cut.png": -1, "empty.png": -1, "gone.png": -1, "text.jpg": -1}
    assert valid == {**dict.fromkeys(names, 1), **bad}
    grey = samples[names.index("cut.png")]
    assert grey["data"][0].size == (12, 12)
    assert set(grey["data"][0].tobytes()) == {128}
    assert grey["label"] == [3]
    told = data.why_unreadable(names.index("text.jpg"))
    assert "x/text.jpg (UnidentifiedImageError: cannot identify" in told
    assert data.why_unreadable(0).endswith("0.png (now it can be read)")


def test_draws_come_from_seed_epoch_and_index_alone(root: Path) -> None:
    def drawn(seed: int, epoch: int, index: int) -> tuple[float, ...]:
        sample = dataset(root, seed, TRANSFORMS=[DRAW])[epoch, index]
        return tuple(sample["data"][0].tolist())

    first = drawn(0, 0, 1)
    assert drawn(0, 0, 1) == first
    others = [drawn(1, 0, 1), drawn(0, 1, 1), drawn(0, 0, 2)]
    assert len({*first, *(value for each in others for value in each)}) == 12


def test_a_batch_is_its_samples(root: Path) -> None:
    data = dataset(root, TRANSFORMS=[DRAW])
    keys = [(1, index) for index in (3, 0, 2)]
    together, alone = data.__getitems__(keys), [data[key] for key in keys]
    assert [each["label"] for each in together] == [each["label"] for each in alone]
    assert [each["data"][0].tolist() for each in together] == [
        each["data"][0].tolist() for each in alone
    ]


def test_the_streams_of_the_main_process_are_put_back(root: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002

    data = dataset(root, TRANSFORMS=[DRAW])
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    expected = draw()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    data[0, 0]
    assert draw() == expected


def test_a_flat_folder_without_labels(tmp_path: Path) -> None:
    options = SplitOptions(
        DATA_SOURCES=["disk_folder"],
        DATA_PATHS=[str(write_tree(tmp_path, "0.png", "1.png"))],
        DATASET_NAMES=["imagenet1k_folder"],
        LABEL_TYPE="sample_index",
    )
    assert SSLDataset(options, "TRAIN", 0)[0, 1]["label"] == [1]
    options.LABEL_TYPE, options.LABEL_SOURCES = "standard", ["disk_folder"]
    with pytest.raises(DataError, match=r"lie in no class folder"):
        SSLDataset(options, "TRAIN", 0)


def test_a_collators_draws_come_from_seed_and_batch_and_leave_no_trace(root: Path) -> None:
    def collate(samples: object) -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002

    def collated(seed: int, *keys: tuple[int, int]) -> tuple[float, float, float]:
        return collate_seeded(collate, dataset(root, seed).__getitems__(keys))

    first = collated(0, (1, 2), (1, 0))
    before = random.getstate()
    assert collated(0, (1, 2), (1, 0)) == first
    assert random.getstate() == before
    others = [collated(1, (1, 2)), collated(0, (0, 2)), collated(0, (1, 0))]
    assert len({*first, *(value for each in others for value in each)}) == 12
    # Nor are they those of the sample itself.
    seed_sample(0, (1, 2))
    assert collate(()) != first


def test_another_sample_stands_for_an_unreadable_image(tmp_path: Path) -> None:
    """Which one depends on (seed, epoch, index) alone: on no other sample and no process."""
    names = [f"{number}.png" for number in range(8)]
    write_tree(tmp_path, *names)
    for number in (2, 5):
        (tmp_path / names[number]).write_bytes(b"no picture")
    options = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(tmp_path)], "LABEL_TYPE": "zero"}
    some = SSLDataset(SplitOptions(ENABLE_QUEUE_DATASET=True, **options), "TRAIN", 0)
    readable = {picture(number).tobytes() for number in range(8) if number not in (2, 5)}
    chosen = []
    for epoch in range(12):
        sample = some[epoch, 2]
        assert sample["data_valid"] == [-1]
        assert sample["data_idx"] == [2]
        chosen.append(sample["data"][0].tobytes())
        assert chosen[-1] in readable
    assert len(set(chosen)) > 2
    for epoch in range(11, -1, -1):
        assert some[epoch, 5]["data"][0].tobytes() in readable
        assert some[epoch, 2]["data"][0].tobytes() == chosen[epoch]
    grey = SSLDataset(SplitOptions(**options), "TRAIN", 0)
    assert set(grey[0, 2]["data"][0].tobytes()) == {128}


def test_a_grey_image_stands_where_no_other_can_be_read(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").touch()
    options = SplitOptions(
        DATA_SOURCES=["disk_folder"], DATA_PATHS=[str(tmp_path)], LABEL_TYPE="zero",
        ENABLE_QUEUE_DATASET=True, DEFAULT_GRAY_IMG_SIZE=4,
    )  # fmt: skip
    sample = SSLDataset(options, "TRAIN", 0)[0, 1]
    assert set(sample["data"][0].tobytes()) == {128}


def test_a_stand_in_leaves_what_the_transforms_draw_alone(tmp_path: Path) -> None:
    write_tree(tmp_path, "0.png", "1.png")
    draws = []
    for broken in (False, True):
        if broken:
            (tmp_path / "1.png").write_bytes(b"no picture")
        options = SplitOptions(
            DATA_SOURCES=["disk_folder"], DATA_PATHS=[str(tmp_path)], LABEL_TYPE="zero",
            ENABLE_QUEUE_DATASET=True, TRANSFORMS=[DRAW],
        )  # fmt: skip
        draws.append(SSLDataset(options, "TRAIN", 7)[3, 1]["data"][0])
    assert torch.equal(*draws)


def test_arrays_of_five_channels_from_file_to_batch(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (9, 12, 5), dtype=np.uint8)
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", values)
    (tmp_path / "c.npy").write_bytes(b"")
    keys = {"IMAGE_MODE": "stored", "LABEL_TYPE": "zero", "DEFAULT_GRAY_IMG_SIZE": 10}
    flip = [{"name": "ToTensor"}, {"name": "RandomHorizontalFlip", "p": 1.0}]
    data = dataset(tmp_path, TRANSFORMS=[*flip, {"name": "CenterCrop", "size": 8}], **keys)
    samples = [data[0, index] for index in range(3)]
    expected = torch.from_numpy(values).permute(2, 0, 1)[:, :, 2:10].flip(-1)[:, :8] / 255
    assert samples[0]["data"][0].shape == (5, 8, 8)
    assert torch.equal(samples[0]["data"][0], expected)
    # What stands for one that cannot be read goes into the same batch.
    assert (samples[2]["data_valid"], samples[2]["data"][0].shape) == ([-1], (5, 8, 8))
    pil_only = dataset(tmp_path, TRANSFORMS=[{"name": "ImgPilGaussianBlur", "p": 1.0,
                                              "radius_min": 1, "radius_max": 2}], **keys)  # fmt: skip
    with pytest.raises(
        DataError, match=r"GaussianBlur.*failed on sample 0.*\n.*Put ToTensor first"
    ):
        pil_only[0, 0]


@pytest.mark.parametrize("mode", ["L", "stored"])
def test_the_stand_in_has_the_channels_of_the_others(tmp_path: Path, mode: str) -> None:
    picture(0).convert("LA" if mode == "stored" else "RGB").save(tmp_path / "0.png")
    (tmp_path / "1.png").write_bytes(b"")
    data = dataset(tmp_path, IMAGE_MODE=mode, LABEL_TYPE="zero")
    modes = [data[0, index]["data"][0].mode for index in range(2)]
    assert modes == (["L", "L"] if mode == "L" else ["LA", "LA"])
