from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor, to_tensor

from sslengine.data.augment.transforms.conversion import (
    ImgPilResizeLargerSide,
    ImgPilToRawTensor,
    ImgToTensor,
    MNISTImgPil2RGB,
)
from tests.data.pictures import picture

WIDE = picture(1, side=12).crop((0, 0, 12, 5))


@pytest.mark.parametrize("image", [WIDE, WIDE.convert("L")], ids=["rgb", "grey"])
def test_tensors_are_torchvisions(image: Image.Image) -> None:
    assert torch.equal(ImgToTensor()(image), to_tensor(image))
    assert torch.equal(ImgToTensor()(np.asarray(image)), to_tensor(image))
    assert torch.equal(ImgPilToRawTensor()(image), pil_to_tensor(image).float())
    assert ImgToTensor()(image).is_contiguous()


def test_a_tensor_is_not_the_image() -> None:
    image = picture(2)
    ImgPilToRawTensor()(image).zero_()
    assert image.tobytes() == picture(2).tobytes()


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [((12, 5), 24, (24, 10)), ((5, 12), 6, (2, 6)), ((7, 7), 7, (7, 7)), ((100, 1), 10, (10, 1))],
)
def test_the_larger_side_is_as_asked(
    size: tuple[int, int], side: int, expected: tuple[int, int]
) -> None:
    image = picture(0, side=128).resize(size)
    resized = ImgPilResizeLargerSide(side)(image)
    assert resized.size == expected
    assert resized.tobytes() == image.resize(expected, Image.Resampling.BILINEAR).tobytes()


def test_digits_become_rgb() -> None:
    digit = picture(3).convert("L")
    plain = np.asarray(MNISTImgPil2RGB()(digit))
    assert (plain == np.asarray(digit)[..., None]).all()
    assert plain.shape == (8, 8, 3)
    pasted = np.array(MNISTImgPil2RGB([12, 10], [3, 1])(digit))
    assert pasted.shape == (10, 12, 3)
    assert (pasted[1:9, 3:11] == plain).all()
    pasted[1:9, 3:11] = 0
    assert not pasted.any()
    assert MNISTImgPil2RGB(32)(digit).size == (32, 32)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (ImgPilResizeLargerSide, {"size": 0}, "expected 1 or more, got 0"),
        (MNISTImgPil2RGB, {"size": [1, 2, 3]}, r"a number, two, or nothing; got \[1, 2, 3\]"),
        (MNISTImgPil2RGB, {"box": [1]}, r"the left and top corner, got \[1\]"),
    ],
)
def test_impossible_sizes(kind: type, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**arguments)
