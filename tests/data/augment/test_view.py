from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from sslengine.data.augment.operations import Crop, FlipLeftRight, Grey
from sslengine.data.augment.view import View, as_view, size_of
from tests.data.augment.photos import photo


def test_sizes_are_height_and_width() -> None:
    assert size_of(photo(0, 20, 30)) == size_of(np.zeros((20, 30, 3), np.uint8)) == (20, 30)
    ops = [Grey(), Crop(1, 2, 10, 12, to=(7, 5)), FlipLeftRight()]
    assert View(np.zeros((20, 30, 3), np.uint8), (20, 30)).then(ops).size == (7, 5)


def test_what_is_to_be_done_is_put_behind_what_was_to_be_done() -> None:
    view = View.of(photo(0, 20, 30))
    first = view.then([Crop(1, 2, 10, 12, to=(7, 5))])
    second = first.then([Grey()])
    assert (view.ops, view.size) == ((), (20, 30))
    assert (first.size, second.size) == ((7, 5), (7, 5))
    assert second.ops == (*first.ops, Grey())
    assert second.source is view.source
    assert view.then([]) is view


def test_an_rgb_image_has_a_view() -> None:
    image = photo(0)
    view = as_view(image)
    assert view == View(image, (60, 75))
    assert as_view(view) is view


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "F"])
def test_no_other_image_has(mode: str) -> None:
    assert as_view(Image.new(mode, (3, 3))) is None
    assert as_view(np.zeros((3, 3, 3), np.uint8)) is None
