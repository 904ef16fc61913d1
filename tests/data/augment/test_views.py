from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import RandomHorizontalFlip, RandomResizedCrop

from sslengine.config.facts import views_per_image
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.views import (
    ImgPilMultiCropRandomApply,
    ImgPilToMultiCrop,
    ImgPilToPatchesAndImage,
    ImgReplicatePil,
    RandomResizedCropWithBox,
)
from sslengine.errors import ConfigError, DataError
from sslengine.methods.vicregl import place_cells
from tests.data.pictures import picture


def seed() -> None:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002


def test_replicas_are_equal_and_independent() -> None:
    image = picture(0)
    views = ImgReplicatePil(3)(image)
    assert [view.tobytes() for view in views] == [picture(0).tobytes()] * 3
    views[1].putpixel((0, 0), (1, 2, 3))
    assert views[0].tobytes() == views[2].tobytes() == picture(0).tobytes()


@pytest.mark.parametrize("kind", [torch.tensor, np.array], ids=["tensor", "array"])
def test_replicas_of_tensors_and_arrays(kind: Any) -> None:
    image = kind(np.arange(24.0).reshape(2, 3, 4))
    views = ImgReplicatePil(3)(image)
    views[1][0, 0, 0] = 7.0
    assert type(views[1]) is type(image)
    assert [float(view[0, 0, 0]) for view in views] == [0.0, 7.0, 0.0]
    assert [float(view.sum()) for view in views] == [276.0, 283.0, 276.0]


@pytest.mark.parametrize("side", [2, 3])
def test_image_and_patches_as_vissl_cuts_them(side: int) -> None:
    image, size = picture(1, side=120), 30 * side
    seed()
    views = ImgPilToPatchesAndImage((0.2, 1.0), 40, (0.6, 1.0), size, num_patches=side**2)(image)

    seed()
    whole = RandomResizedCrop(40, (0.2, 1.0))(image)
    pixels = np.asarray(RandomResizedCrop(size, (0.6, 1.0))(image))
    jitter = np.random.randint(0, 21, (2, side, side))  # noqa: NPY002
    cells = [(i, j) for i in range(side) for j in range(side)]
    expected = []
    for i, j in cells:
        x, y = i * 30 + jitter[0, i, j], j * 30 + jitter[1, i, j]
        expected.append(pixels[y : y + 9, x : x + 9])
    order = np.random.permutation(side**2)  # noqa: NPY002
    assert views[0].tobytes() == whole.tobytes()
    assert len(views) == 1 + side**2
    for view, number in zip(views[1:], order, strict=True):
        np.testing.assert_array_equal(np.asarray(view), expected[number])


def test_a_crop_is_where_its_box_says_flipped_or_not() -> None:
    """Red tells the column and green the row; each place of a map is the mean of its pixels."""
    ramp = np.zeros((120, 200, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(200)[None, :], np.arange(120)[:, None]
    change, flipped = RandomResizedCropWithBox(32, scale=(0.2, 1.0)), set()
    for number in range(20):
        torch.manual_seed(number)
        made = change(Image.fromarray(ramp))
        torch.manual_seed(number)
        plain = RandomResizedCrop(32, (0.2, 1.0))(Image.fromarray(ramp))
        plain = RandomHorizontalFlip()(plain)
        assert made["data"].tobytes() == plain.tobytes()
        pixels = np.asarray(made["data"], np.float64).reshape(4, 8, 4, 8, 3).mean((1, 3))[..., :2]
        found = place_cells(made["box"].unsqueeze(0), torch.zeros(1, 1, 4, 4))[0].numpy()
        np.testing.assert_allclose(found - 0.5, pixels.reshape(16, 2), atol=1.5)
        flipped.add(bool(made["box"][0] > made["box"][2]))
    assert flipped == {True, False}


def test_number_of_views() -> None:
    crop = {"name": "RandomResizedCrop", "size": 8}
    assert views_per_image([crop]) == 1
    assert views_per_image([{"name": "ImgReplicatePil"}, crop]) == 2
    assert views_per_image([{"name": "ImgReplicatePil", "num_times": 3}, crop]) == 3
    assert views_per_image([{"name": "ImgPilToPatchesAndImage", "num_patches": 4}]) == 1


# ---- crops of several sizes

SWAV = {
    "total_num_crops": 5,
    "num_crops": [2, 3],
    "size_crops": [16, 8],
    "crop_scales": [[0.14, 1], [0.05, 0.14]],
}


class AddNoise:
    """Draws from the stream that decides whether it is applied."""

    def __call__(self, value: float) -> float:
        return value + float(torch.rand(1))


def sample(image: Any) -> dict[str, list[Any]]:
    return {"data": [image], "data_valid": [1], "data_idx": [7], "label": [3]}


def test_crops_are_torchvisions_one_kind_after_the_other() -> None:
    image = picture(3, side=40)
    torch.manual_seed(11)
    crops = ImgPilToMultiCrop(**SWAV)(image)
    torch.manual_seed(11)
    large, small = RandomResizedCrop(16, (0.14, 1.0)), RandomResizedCrop(8, (0.05, 0.14))
    expected = [crop(image) for crop in (large, large, small, small, small)]
    assert [crop.size for crop in crops] == [(16, 16)] * 2 + [(8, 8)] * 3
    assert [crop.tobytes() for crop in crops] == [crop.tobytes() for crop in expected]
    assert len({crop.tobytes() for crop in crops}) == 5


def test_draws_are_those_of_torchvisions_random_apply() -> None:
    apply = ImgPilMultiCropRandomApply([AddNoise(), AddNoise()], [0.3, 0.9])
    for number in range(30):
        torch.manual_seed(number)
        got = apply([0.0, 10.0])
        torch.manual_seed(number)
        expected = []
        for value, p in ((0.0, 0.3), (10.0, 0.9)):
            if torch.rand(1) <= p:
                value += float(torch.rand(1))
                value += float(torch.rand(1))
            expected.append(value)
        assert got == expected


def test_chances_must_fit_the_crops() -> None:
    entry = {"name": "ImgPilMultiCropRandomApply", "transforms": [{"name": "ToTensor"}]}
    with pytest.raises(DataError, match=r"here.0 .* sample 7: .*each of the 1 crops .* got 2"):
        Pipeline([{**entry, "prob": [0.1, 0.2]}], "here")(sample(picture(0)))
    with pytest.raises(ConfigError, match=r"here.0 .*between 0 and 1; got 2"):
        Pipeline([{**entry, "prob": [2.0]}], "here")
