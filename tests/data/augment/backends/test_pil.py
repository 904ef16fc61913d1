from __future__ import annotations

import numpy as np
import pytest
from torchvision.transforms import functional

from sslengine.data.augment.backends.pil import PilBackend
from sslengine.data.augment.operation import Operation
from sslengine.data.augment.operations import Brightness, Crop, FlipLeftRight
from tests.data.augment.photos import photo

OPS: list[Operation] = [Crop(3, 4, 40, 50, to=(24, 20)), FlipLeftRight(), Brightness(1.3)]


@pytest.mark.parametrize("as_array", [False, True])
def test_in_order_as_torchvision_does(as_array: bool) -> None:
    image = photo(0)
    source = np.asarray(image) if as_array else image
    expected = functional.resized_crop(image, 3, 4, 40, 50, [24, 20])
    expected = functional.adjust_brightness(functional.hflip(expected), 1.3)
    pixels = functional.pil_to_tensor(expected)
    backend = PilBackend()
    assert (np.asarray(backend.image(source, OPS)) == np.asarray(expected)).all()
    made = backend.tensor(source, OPS)
    assert made.is_contiguous()
    assert (made == pixels).all()


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("ops", [[], OPS[:1], OPS[1:2], [Crop(0, 0, 60, 75, to=(60, 75))]])
def test_what_is_drawn_into_an_image_does_not_reach_its_source(
    as_array: bool, ops: list[Operation]
) -> None:
    source = np.array(photo(0)) if as_array else photo(0)
    backend = PilBackend()
    backend.image(source, ops).paste((255, 0, 255), (0, 0, 99, 99))
    backend.tensor(source, ops).fill_(7)
    assert (np.asarray(source) == np.asarray(photo(0))).all()
