from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as F

from sslengine.data.augment.operations.turn import turned
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.transforms.rotation import ImgRotatePil
from sslengine.errors import ConfigError
from tests.data.pictures import picture


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image)


def wide() -> Image.Image:
    return picture(4, side=12).crop((0, 0, 12, 7))


def rotated(image: Image.Image, angle: float) -> Image.Image:
    for op in turned(angle):
        image = op.on_pil(image)
    return image


def test_a_quarter_turn_is_counter_clockwise() -> None:
    row = np.zeros((1, 2, 3), np.uint8)
    row[0, 0], row[0, 1] = 10, 20  # left, right
    upright = pixels(rotated(Image.fromarray(row), 90))
    assert upright[:, 0, 0].tolist() == [20, 10]  # what was on the right is on top


@pytest.mark.parametrize("image", [picture(0, side=9), wide()], ids=["square", "wide"])
def test_turning_back_by_the_label_gives_the_image(image: Image.Image) -> None:
    labels = set()
    for number in range(40):
        torch.manual_seed(number)
        turned, label = ImgRotatePil()(image)
        labels.add(label)
        assert np.array_equal(np.rot90(pixels(turned), -label), pixels(image))
    assert labels == {0, 1, 2, 3}


@pytest.mark.parametrize("num_angles", [4, 8])
def test_squares_are_turned_as_torchvision_does_and_vissl_draws(num_angles: int) -> None:
    image = picture(1, side=16)
    for number in range(30):
        torch.manual_seed(number)
        turned, label = ImgRotatePil(num_angles)(image)
        after = torch.rand(1)
        torch.manual_seed(number)
        expected = int(torch.randint(num_angles, [1]))
        assert (label, torch.rand(1)) == (expected, after)
        theirs = F.rotate(image, label * 360 / num_angles)
        assert turned.tobytes() == theirs.tobytes()


def test_nothing_black_comes_into_an_image_that_is_not_square() -> None:
    white = Image.new("RGB", (12, 7), (255, 255, 255))
    for label in range(4):
        assert pixels(rotated(white, 90 * label)).min() == 255


def test_the_angle_becomes_the_label() -> None:
    pipeline = Pipeline([{"name": "ImgRotatePil"}, {"name": "ToTensor"}], "here")
    image = picture(2)
    for number in range(20):
        torch.manual_seed(number)
        made = pipeline({"data": [image], "data_valid": [1], "data_idx": [7], "label": [7]})
        label = made["label"][0]
        turned = np.rot90((made["data"][0] * 255).permute(1, 2, 0).numpy(), -label)
        assert np.array_equal(turned.round(), pixels(image))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_angles": 0}, "num_angles: expected 1 or more, got 0"),
        ({"num_rotations_per_img": 2}, "one label and so one rotation; expected 1, got 2"),
    ],
)
def test_impossible_rotations(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"here.0 \(ImgRotatePil\): .*{message}"):
        Pipeline([{"name": "ImgRotatePil", **arguments}], "here")
