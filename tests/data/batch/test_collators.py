from __future__ import annotations

import pytest
import torch
from PIL import Image

from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import (
    default_collate,
    moco_collator,
    multicrop_collator,
    patch_and_image_collator,
    siamese_collator,
    simclr_collator,
    targets_one_hot_default_collator,
)
from sslengine.errors import DataError


def sample(number: int, views: int) -> Sample:
    """Each view's pixels are 10 * sample + view."""
    return {
        "data": [torch.full((3, 2, 2), 10.0 * number + view) for view in range(views)],
        "data_valid": [-1 if number == 1 else 1] * views,
        "data_idx": [100 + number] * views,
        "label": [number % 2] * views,
    }


def batch(views: int) -> list[Sample]:
    return [sample(number, views) for number in range(3)]


def pixels(tensors: list[torch.Tensor]) -> list[list[float]]:
    assert all(tensor.shape[1:] == (3, 2, 2) for tensor in tensors)
    return [tensor[:, 0, 0, 0].tolist() for tensor in tensors]


def test_default_collate_keeps_sources_apart() -> None:
    one = default_collate(batch(1))
    assert pixels(one["data"]) == [[0, 10, 20]]
    assert {key: value[0].tolist() for key, value in one.items() if key != "data"} == {
        "data_valid": [1, -1, 1],
        "data_idx": [100, 101, 102],
        "label": [0, 1, 0],
    }
    assert pixels(default_collate(batch(2))["data"]) == [[0, 10, 20], [1, 11, 21]]


def test_simclr_puts_first_views_first() -> None:
    two = simclr_collator(batch(2))
    assert pixels(two["data"]) == [[0, 10, 20, 1, 11, 21]]
    assert [two[key][0].tolist() for key in ("data_valid", "data_idx", "label")] == [
        [1, -1, 1, 1, -1, 1],
        [100, 101, 102, 100, 101, 102],
        [0, 1, 0, 0, 1, 0],
    ]
    assert all(len(values) == 1 for values in two.values())


def test_patches_stay_together_by_sample() -> None:
    collated = patch_and_image_collator(batch(4))
    assert pixels(collated["images"]) == [[0, 10, 20]]
    assert pixels(collated["patches"]) == [[1, 2, 3, 11, 12, 13, 21, 22, 23]]
    assert collated["patches"][0].view(3, 3, -1)[1, :, 0].tolist() == [11, 12, 13]
    assert collated["data_idx"][0].tolist() == [100, 101, 102]
    assert collated["label"][0].tolist() == [0, 1, 0]
    assert set(collated) == {"images", "patches", "data_valid", "data_idx", "label"}


def crops(number: int, sides: list[int]) -> Sample:
    """Crops of these sizes; each one's pixels are 10 * sample + crop."""
    made = sample(number, len(sides))
    made["data"] = [
        torch.full((3, side, side), 10.0 * number + crop) for crop, side in enumerate(sides)
    ]
    return made


def test_multicrop_is_a_list_of_crops_and_the_rest_in_their_order() -> None:
    collated = multicrop_collator([crops(number, [4, 4, 2]) for number in range(3)])
    (images,) = collated["data"]
    assert [tuple(crop.shape) for crop in images] == [(3, 3, 4, 4), (3, 3, 4, 4), (3, 3, 2, 2)]
    means = [crop.mean((1, 2, 3)).tolist() for crop in images]
    assert means == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    assert all(float(crop.var((1, 2, 3)).sum()) == 0 for crop in images)
    assert [collated[key][0].tolist() for key in ("data_valid", "data_idx", "label")] == [
        [1, -1, 1] * 3,
        [100, 101, 102] * 3,
        [0, 1, 0] * 3,
    ]
    assert all(len(values) == 1 for values in collated.values())


def test_moco_keeps_two_views_apart_and_labels_once() -> None:
    collated = moco_collator(batch(3))
    assert pixels(collated["data"]) == [[0, 10, 20]]
    assert pixels(collated["data_momentum"]) == [[1, 11, 21]]
    assert [collated[key][0].tolist() for key in ("data_valid", "data_idx", "label")] == [
        [1, -1, 1],
        [100, 101, 102],
        [0, 1, 0],
    ]
    with pytest.raises(DataError, match=r"needs two views of each image: put ImgReplicatePil"):
        moco_collator(batch(1))


def test_siamese_joins_the_patches_of_a_sample() -> None:
    samples = batch(1)
    for number, each in enumerate(samples):
        each["data"] = [torch.stack([torch.full((3, 2, 2), 10.0 * number + p) for p in range(4)])]
    collated = siamese_collator(samples)
    assert pixels(collated["data"]) == [[0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]]
    assert collated["label"][0].tolist() == [0, 1, 0]
    assert collated["data_idx"][0].tolist() == [100, 101, 102]
    with pytest.raises(DataError, match=r"got \(3, 2, 2\): put ImgPatchesFromTensor"):
        siamese_collator(batch(1))


@pytest.mark.parametrize(
    "collate",
    [
        default_collate,
        simclr_collator,
        patch_and_image_collator,
        multicrop_collator,
        moco_collator,
    ],
)
def test_other_keys_are_carried(collate) -> None:  # type: ignore[no-untyped-def]
    samples = [{**each, "mask": [torch.tensor([7])] * 2} for each in batch(2)]
    assert collate(samples)["mask"][0].unique().tolist() == [7]
    assert collate(samples)["label"][0].dtype == torch.int64


def test_what_cannot_be_collated_is_told() -> None:
    sizes = batch(1)
    sizes[2]["data"] = [torch.zeros(3, 4, 4)]
    with pytest.raises(DataError, match=r"'data' of different sizes, \(3, 2, 2\) and \(3, 4, 4\)"):
        default_collate(sizes)
    images = [{**each, "data": [Image.new("RGB", (2, 2))]} for each in batch(1)]
    with pytest.raises(DataError, match=r"'data' is a Image. Put ToTensor"):
        default_collate(images)
    with pytest.raises(DataError, match=r"found no patches: put ImgPilToPatchesAndImage"):
        patch_and_image_collator(batch(1))


def shown(index: int, label: object) -> Sample:
    return {**sample(index, 1), "label": [label]}


def test_what_is_there_what_is_not_and_what_nobody_says() -> None:
    labels = ([[1, 3], [4]], [[], [0, 1]], [[2], []])
    made = targets_one_hot_default_collator([shown(2, each) for each in labels], num_classes=5)
    expected = [[-1, 1, -1, 1, 0], [0, 0, -1, -1, -1], [-1, -1, 1, -1, -1]]
    assert made["label"][0].tolist() == expected
    assert pixels(made["data"]) == [[20.0] * 3]


@pytest.mark.parametrize("label", [3, [1, 2], [[1], [2], [3]], [[1], [5]]])
def test_labels_that_are_not_two_lists_of_classes(label: object) -> None:
    with pytest.raises(DataError, match="a label of two lists, .* num_classes"):
        targets_one_hot_default_collator([shown(0, label)], num_classes=5)
