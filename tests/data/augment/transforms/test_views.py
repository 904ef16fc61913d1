from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from sslengine.config.facts import views_per_image
from sslengine.data.augment.transforms.views import ImgPilToPatchesAndImage, ImgReplicatePil
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


def test_patches_in_order() -> None:
    # A picture whose red tells the column and whose green tells the row.
    ramp = np.zeros((90, 90, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(90)[None, :], np.arange(90)[:, None]
    # Only the whole has the area of the whole.
    cut = ImgPilToPatchesAndImage(
        crop_scale_patches=(1.0, 1.0), crop_size_patches=90, permute_patches=False
    )
    patches = [np.asarray(patch).max((0, 1)) // 30 for patch in cut(Image.fromarray(ramp))[1:]]
    assert [tuple(patch[:2]) for patch in patches] == [(i, j) for i in range(3) for j in range(3)]


def test_defaults_are_those_of_pirl() -> None:
    views = ImgPilToPatchesAndImage()(picture(0, side=300))
    assert [view.size for view in views] == [(224, 224)] + [(64, 64)] * 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_patches": 8}, "square number, got 8"),
        ({"num_patches": 0}, "square number, got 0"),
        ({"crop_size_patches": 63}, "too small for 9 patches; expected 66 or more"),
    ],
)
def test_impossible_patches(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImgPilToPatchesAndImage(**arguments)


def test_impossible_replicas() -> None:
    with pytest.raises(ValueError, match="num_times: expected 1 or more, got 0"):
        ImgReplicatePil(0)


def test_number_of_views() -> None:
    crop = {"name": "RandomResizedCrop", "size": 8}
    assert views_per_image([crop]) == 1
    assert views_per_image([{"name": "ImgReplicatePil"}, crop]) == 2
    assert views_per_image([{"name": "ImgReplicatePil", "num_times": 3}, crop]) == 3
    assert views_per_image([{"name": "ImgPilToPatchesAndImage", "num_patches": 4}]) == 1
