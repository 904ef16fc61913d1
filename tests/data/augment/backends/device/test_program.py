from __future__ import annotations

import numpy as np
import pytest
import torch

from sslengine.data.augment import operations as ops
from sslengine.data.augment.backends.device import program
from sslengine.errors import DataError
from tests.data.augment.backends.device.cases import noise


@pytest.mark.parametrize("size", [(224, 224), (96, 96), (7, 5), (1, 1), (40, 300)])
def test_pixels_and_operations_come_back(size: tuple[int, int]) -> None:
    pixels = noise(3, *size)
    pending = [ops.Blur(1.5), ops.Grey(), ops.Brightness(0.7), ops.Solarize(256)]
    whole = program.put_below(pixels, pending)
    assert (whole.shape[0], whole.shape[2]) == (3, size[1])
    assert program.height_of_pixels(whole) == size[0]
    assert torch.equal(whole[:, : size[0]], pixels)
    read = program.read_below(whole[None])
    kinds = [program.KERNELS[code - 1] for code in read.codes[0] if code]
    assert kinds == [ops.Blur, ops.Grey, ops.Brightness, ops.Solarize]
    given = read.parameters[0, :4]
    assert (given == np.array([1.5, 0, 0.7, 256], np.float32)).all()


def test_views_of_one_size_travel_as_one_size() -> None:
    pixels = noise(3, 10, 10)
    shapes = {program.put_below(pixels, [ops.Grey()] * n).shape for n in range(program.SLOTS + 1)}
    assert len(shapes) == 1


@pytest.mark.parametrize("shift", np.linspace(-0.5, 0.5, 41).tolist())
def test_a_hue_is_turned_as_torchvision_turns_it(shift: float) -> None:
    read = program.read_below(program.put_below(noise(3, 9, 9), [ops.Hue(shift)])[None])
    byte = np.zeros(1, np.uint8)
    byte += np.array(shift * 255).astype(np.int32).astype(np.uint8)
    assert read.parameters[0, 0] == byte[0]


def test_patches_of_images_come_in_any_number_of_dimensions() -> None:
    whole = torch.stack([program.put_below(noise(3, 9, 9), [ops.Grey()] * n) for n in range(6)])
    flat, nested = program.read_below(whole), program.read_below(whole.view(2, 3, *whole.shape[1:]))
    assert (flat.codes == nested.codes).all()
    assert (flat.codes > 0).sum(1).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_tensor_that_lost_its_operations_is_told_of() -> None:
    with pytest.raises(DataError, match="AUGMENT_BACKEND=device needs a collator that moves"):
        program.read_below(noise(2, 3, 224, 224))
