from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor, to_tensor

from sslengine.data.augment.conversion import (
    ImgPil2LabTensor,
    ImgPilResizeLargerSide,
    ImgPilToRawTensor,
    ImgToTensor,
    MNISTImgPil2RGB,
    OneHotEncode,
)
from sslengine.data.augment.pipeline import Pipeline
from tests.data.pictures import picture
from tests.data.test_feed import feed

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


# ---- L*a*b*

# sRGB under D65 and the observer of 2 degrees, as Lindbloom's and EasyRGB's calculators have them.
PUBLISHED = {
    (0, 0, 0): (0.0, 0.0, 0.0),
    (255, 255, 255): (100.0, 0.0, 0.0),
    (255, 0, 0): (53.24, 80.09, 67.20),
    (0, 255, 0): (87.73, -86.18, 83.18),
    (0, 0, 255): (32.30, 79.19, -107.86),
    (255, 255, 0): (97.14, -21.55, 94.48),
    (0, 255, 255): (91.11, -48.09, -14.13),
    (255, 0, 255): (60.32, 98.23, -60.82),
    (128, 128, 128): (53.59, 0.0, 0.0),
}


@pytest.mark.parametrize("colour", PUBLISHED)
def test_published_colours(colour: tuple[int, int, int]) -> None:
    lab = ImgPil2LabTensor()(Image.new("RGB", (3, 2), colour))
    assert lab.shape == (3, 2, 3)
    assert lab.dtype is torch.float32
    expected = torch.tensor(PUBLISHED[colour]).view(3, 1, 1).expand(3, 2, 3)
    # Matrices with other last digits than OpenCV's move the second decimal.
    torch.testing.assert_close(lab, expected, atol=0.03, rtol=0)


def test_a_colour_after_the_other_by_the_definition() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    lab = ImgPil2LabTensor()(Image.fromarray(pixels)).permute(1, 2, 0)
    for row in range(5):
        for column in range(7):
            expected = _lab(*(float(each) / 255 for each in pixels[row, column]))
            assert lab[row, column].tolist() == pytest.approx(expected, abs=2e-4)


def _lab(*levels: float) -> tuple[float, float, float]:
    r, g, b = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in levels
    )
    x = (0.412453 * r + 0.357580 * g + 0.180423 * b) / 0.950456
    y = 0.212671 * r + 0.715160 * g + 0.072169 * b
    z = (0.019334 * r + 0.119193 * g + 0.950227 * b) / 1.088754
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def test_the_images_that_indices_name() -> None:
    """VISSL's YAML always gives them."""
    pipeline = Pipeline([{"name": "ImgPil2LabTensor", "indices": [1]}], "here")
    images = [Image.new("RGB", (2, 2)), Image.new("L", (2, 2), 255)]
    sample = pipeline({"data": images, "data_idx": [0, 0], "data_valid": [1, 1], "label": [0, 0]})
    assert sample["data"][0] is images[0]
    assert sample["data"][1][0].tolist() == pytest.approx(np.full((2, 2), 100.0))


# ---- labels


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (2, [0, 0, 1, 0]),
        ([0, 3], [1, 0, 0, 1]),
        (torch.tensor([1, 1]), [0, 1, 0, 0]),
        ([], [0, 0, 0, 0]),
    ],
)
def test_a_vector_of_classes(label: Any, expected: list[int]) -> None:
    assert OneHotEncode(num_classes=4)(label).tolist() == expected


def test_labels_of_a_batch() -> None:
    """Each view has its own; torch's own one_hot is the judge."""
    transforms = [
        {"name": "ImgReplicatePil"}, {"name": "OneHotEncode", "num_classes": 22}, {"name": "ToTensor"},
    ]  # fmt: skip
    for batch in feed(TRANSFORMS=transforms).batches():
        expected = torch.nn.functional.one_hot(batch["data_idx"][0], 22)
        assert torch.equal(batch["label"][0], expected)


@pytest.mark.parametrize("place", [1, 2])
def test_it_does_not_make_workers_send_floats(place: int) -> None:
    transforms: list[dict[str, Any]] = [{"name": "ImgReplicatePil"}, {"name": "ToTensor"}]
    transforms.insert(place, {"name": "OneHotEncode", "num_classes": 22})
    one = feed(TRANSFORMS=transforms)
    (image, _) = one.dataset.__getitems__([(0, 1)])[0]["data"]
    assert image.dtype == torch.uint8
    batch = next(one.batches())
    assert batch["data"][0].dtype == torch.float32
    assert batch["label"][0].shape[-1] == 22


def test_classes_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"from 0 to num_classes - 1, 3; got \[4\]"):
        OneHotEncode(4)(4)
    with pytest.raises(ValueError, match="num_classes: expected 1 or more, got 0"):
        OneHotEncode(0)
