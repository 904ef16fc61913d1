from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.data.loading import dataset as module
from sslengine.data.loading.dataset import SSLDataset, collate_seeded
from sslengine.data.options import SplitOptions
from sslengine.data.seeding import seed_sample
from sslengine.errors import DataError
from tests.data.pictures import picture, write_picture, write_tree

DRAW = {"name": "tests.data.probes:DrawProbe"}


def dataset(root: Path, seed: int = 0, replace: bool = True, **keys: Any) -> SSLDataset:
    keys = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(root)], **keys}
    return SSLDataset(SplitOptions(LABEL_SOURCES=keys["DATA_SOURCES"], **keys), "TRAIN", seed,
                      replace=replace)  # fmt: skip


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


def test_it_notes_which_sample_it_is_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_place", module._place)
    places, seen = torch.full((3,), module.NO_SAMPLE), []
    module.note_places_in(places, 2)
    data = dataset(root)
    data.pipeline.steps.insert(0, lambda sample: seen.append(places.tolist()))
    data.__getitems__([(0, 2), (0, 1)])
    assert seen == [[-1, -1, 2], [-1, -1, 1]]
    assert places.tolist() == [-1, -1, -1]


def test_a_subset_keeps_images_and_labels_together(root: Path) -> None:
    limited = dataset(root, DATA_LIMIT=3)
    assert len(limited) == 3
    for index, row in enumerate(limited.rows):
        sample = limited[0, index]
        assert sample["data"][0].tobytes() == picture(int(row)).tobytes()
        assert sample["label"] == [[0, 0, 1, 2][row]]
        assert sample["data_idx"] == [index]


def test_unreadable_images_of_every_kind(root: Path) -> None:
    whole = write_picture(root / "x" / "whole.png", 9, side=64)
    for name, content in {
        "cut.png": whole.read_bytes()[: whole.stat().st_size // 2],
        "empty.png": b"",
        "text.jpg": b"not an image",
    }.items():
        (root / "x" / name).write_bytes(content)
    (root / "x" / "gone.png").symlink_to("nowhere.png")
    data = dataset(root)
    names = [Path(data.sources[0].path(index)).name for index in range(len(data))]
    bad = [names.index(name) for name in ("cut.png", "empty.png", "gone.png", "text.jpg")]
    samples = data.__getitems__([(0, index) for index in range(len(data))])
    assert samples.unreadable == bad
    assert len(samples) == len(data)
    for index, sample in enumerate(samples):
        (number,) = sample["data_idx"]
        assert (number == index) == (index not in bad)
        assert number not in bad
        assert sample == {**data[0, number], "data": sample["data"]}  # its label too
        assert sample["data"][0].tobytes() == data[0, number]["data"][0].tobytes()
    apart = dataset(root, replace=False)
    left = apart.__getitems__([(0, index) for index in range(len(data))])
    assert [sample["data_idx"][0] for sample in left] == [
        index for index in range(len(data)) if index not in bad
    ]
    assert left.unreadable == bad
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


def test_another_sample_stands_for_an_unreadable_one(tmp_path: Path) -> None:
    """Which one depends on (seed, epoch, index) alone: on no other sample and no process."""
    names = [f"{number}.png" for number in range(8)]
    write_tree(tmp_path, *names)
    for number in (2, 5):
        (tmp_path / names[number]).write_bytes(b"no picture")
    some = dataset(tmp_path, LABEL_TYPE="sample_index")
    chosen = []
    for epoch in range(12):
        sample = some[epoch, 2]
        (number,) = sample["data_idx"]
        assert number not in (2, 5)
        assert sample["data"][0].tobytes() == picture(number).tobytes()
        assert (sample["data_valid"], sample["label"]) == ([1], [number])
        chosen.append(number)
    assert len(set(chosen)) > 2
    for epoch in range(11, -1, -1):
        assert some[epoch, 5]["data_idx"][0] not in (2, 5)
        assert some[epoch, 2]["data_idx"] == [chosen[epoch]]


def test_of_several_sources_all_give_the_same_sample(tmp_path: Path) -> None:
    names = ("a/0.png", "a/1.png", "b/2.png", "c/3.png")
    roots = [write_tree(tmp_path / name, *names) for name in ("one", "other")]
    (roots[1] / "b" / "2.png").write_bytes(b"")
    two = dataset(
        tmp_path, DATA_SOURCES=["disk_folder"] * 2, DATA_PATHS=[str(root) for root in roots]
    )
    sample = two[0, 2]
    (number,) = set(sample["data_idx"])
    assert number != 2
    assert {image.tobytes() for image in sample["data"]} == {picture(number).tobytes()}


@pytest.mark.parametrize("readable", [0, 17])
def test_one_that_can_be_read_is_found_however_few_there_are(tmp_path: Path, readable: int) -> None:
    for number in range(60):
        (tmp_path / f"{number:02}.png").touch()
    write_picture(tmp_path / f"{readable:02}.png", readable)
    some = dataset(tmp_path, LABEL_TYPE="zero")
    assert {some[epoch, 30]["data_idx"][0] for epoch in range(5)} == {readable}


def test_where_no_other_can_be_read(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").touch()
    with pytest.raises(DataError, match=r"none of the first 3 images can be read.*1.png \(Unid"):
        dataset(tmp_path, LABEL_TYPE="zero")[0, 1]


def test_a_batch_that_is_left_out_as_a_whole(tmp_path: Path) -> None:
    write_tree(tmp_path, "0.png", "1.png")
    (tmp_path / "1.png").write_bytes(b"")
    data = dataset(tmp_path, replace=False, LABEL_TYPE="zero", DEFAULT_GRAY_IMG_SIZE=4)
    samples = data.__getitems__([(0, 1)])
    assert samples.unreadable == [1]
    (sample,) = samples
    assert (sample["data_idx"], sample["data_valid"]) == ([-1], [-1])
    assert set(sample["data"][0].tobytes()) == {128}


def test_a_stand_in_leaves_what_the_transforms_draw_alone(tmp_path: Path) -> None:
    write_tree(tmp_path, "0.png", "1.png")
    draws = []
    for broken in (False, True):
        if broken:
            (tmp_path / "1.png").write_bytes(b"no picture")
        draws.append(dataset(tmp_path, 7, LABEL_TYPE="zero", TRANSFORMS=[DRAW])[3, 1]["data"][0])
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
    assert torch.equal(samples[2]["data"][0], expected)  # another one stands for it
    moved = [{"name": "RandomHorizontalFlip", "p": 1.0}, {"name": "CenterCrop", "size": 8}]
    of_arrays = dataset(tmp_path, TRANSFORMS=[*moved, {"name": "ToTensor"}], **keys)
    assert torch.equal(of_arrays[0, 0]["data"][0], expected)
    rgb_only = dataset(tmp_path, TRANSFORMS=[{"name": "RandomGrayscale", "p": 1.0}], **keys)
    with pytest.raises(DataError, match=r"Grayscale.*failed on sample 0.*Grey asks for RGB"):
        rgb_only[0, 0]


@pytest.mark.parametrize("mode", ["L", "stored"])
def test_what_stands_for_a_whole_batch_has_the_channels_of_the_others(
    tmp_path: Path, mode: str
) -> None:
    picture(0).convert("LA" if mode == "stored" else "RGB").save(tmp_path / "0.png")
    (tmp_path / "1.png").write_bytes(b"")
    data = dataset(tmp_path, replace=False, IMAGE_MODE=mode, LABEL_TYPE="zero")
    modes = [data[0, index]["data"][0].mode for index in range(2)]
    assert modes == (["L", "L"] if mode == "L" else ["LA", "LA"])
