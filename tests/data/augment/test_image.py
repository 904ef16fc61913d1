"""Who may write into an image: pixels that several hold never change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sslengine.data.augment.geometry import crop
from sslengine.data.augment.image import (
    Rgb,
    interleaved,
    is_image,
    make_bytes,
    make_pil,
    make_rgb,
    own,
    share,
    view_planes,
)
from sslengine.data.augment.levels import invert
from sslengine.data.augment.pipeline import Pipeline
from tests.data.augment.photos import photo
from tests.data.augment.planes import as_planes, compile_or_skip, noise


@pytest.fixture(autouse=True)
def _compiled() -> None:
    compile_or_skip()


def decoded() -> Rgb:
    image: Rgb = make_rgb(photo(0))
    return image


# One image in each order that it may lie in memory.
ORDERS: dict[str, Callable[[], Rgb]] = {
    "rows": decoded,
    "planes": lambda: view_planes(as_planes(photo(0))),
    "a part of rows": lambda: decoded()[3:40, 5:70],
    "a part of planes": lambda: view_planes(as_planes(photo(0)))[3:40, 5:70],
    "one column": lambda: view_planes(noise(9, 1)),
    "one row": lambda: decoded()[:1],
    "one pixel": lambda: decoded()[:1, :1],
}


@pytest.mark.parametrize("order", ORDERS)
def test_pixels_are_the_same_in_any_order(order: str) -> None:
    image = ORDERS[order]()
    pixels = np.array(image)
    assert (interleaved(image) == pixels).all()
    assert (np.asarray(make_pil(image)) == pixels).all()
    tensor = make_bytes(image)
    assert (tensor.permute(1, 2, 0).numpy() == pixels).all()
    assert tensor.is_contiguous()
    assert min(tensor.stride()) > 0
    assert (own(image)[1].transpose(1, 2, 0) == pixels).all()


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_shared_never_changes(order: str) -> None:
    image = share(ORDERS[order]())
    before = np.array(image)
    assert not (np.asarray(invert(image)) == before).any()
    make_bytes(image).fill_(7)
    make_pil(image).paste((255, 0, 255), (0, 0, 99, 99))
    assert (np.asarray(image) == before).all()


def test_an_image_of_ones_own_is_changed_in_place() -> None:
    image = view_planes(noise(20, 30))
    assert np.shares_memory(invert(image), image)
    assert np.shares_memory(make_bytes(image).numpy(), image)


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "ImgReplicatePil"},
        {"name": "ImgPilToMultiCrop", "total_num_crops": 2, "num_crops": [2], "size_crops": [30],
         "crop_scales": [[1.0, 1.0]]},
    ],
    ids=["copies", "crops"],
)  # fmt: skip
@pytest.mark.parametrize("before", [[], [{"name": "RandomCrop", "size": 30},
                                         {"name": "RandomInvert", "p": 1.0}]])  # fmt: skip
def test_views_do_not_see_each_others_changes(entry: Any, before: list[Any]) -> None:
    """Crops at scale 1 are parts of one image, also of one in the middle of a list."""
    entries = [*before, entry, {"name": "RandomInvert", "p": 1.0, "indices": [1]}]
    square = crop(decoded(), (0, 0, 30, 30), (30, 30))
    sample = {"data": [square], "data_valid": [1], "data_idx": [0], "label": [0]}
    torch.manual_seed(0)
    one, other = (np.asarray(each).astype(int) for each in Pipeline(entries, "T")(sample)["data"])
    assert (one + other == 255).all()


def test_only_rgb_images_of_pillow_become_arrays() -> None:
    for mode in ("L", "RGBA", "P", "F"):
        image = Image.new(mode, (3, 3))
        assert make_rgb(image) is image
        assert not is_image(image)
    assert is_image(photo(0))
    assert is_image(np.zeros((3, 3, 5)))
    assert not is_image(torch.zeros(3, 3, 3))
