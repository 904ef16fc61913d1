"""Tensors of images and labels: to the bit as torchvision's, at once or after collate."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import Compose, Normalize, ToPILImage, ToTensor
from torchvision.transforms.functional import pil_to_tensor, to_tensor

from sslengine.data.augment.tensors import (
    CPU,
    Finish,
    ImgPilToRawTensor,
    ImgToTensor,
    OneHotEncode,
    can_be_put_off,
)
from sslengine.data.feed import move_batches
from tests.data.pictures import picture
from tests.data.test_feed import feed
from tests.launches import Launches

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
    with pytest.raises(ValueError, match=r"labels: expected 0 to num_classes - 1, 3, got \[4\]"):
        OneHotEncode(4)(4)


# ---- put off until after collate

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Each value in each channel, beside others.
PIXELS = torch.stack([torch.arange(256).roll(turn).view(16, 16) for turn in (0, 80, 160)]).byte()


@pytest.mark.parametrize("conversion", [ToTensor(), ImgToTensor(), ImgPilToRawTensor()])
@pytest.mark.parametrize(
    "normalizations",
    [[], [Normalize(MEAN, STD)], [Normalize([0.5], [0.3]), Normalize(MEAN, STD, inplace=True)]],
)
def test_to_the_bit_as_torchvision_for_all_values(
    conversion: Any, normalizations: list[Normalize]
) -> None:
    expected = Compose([ToPILImage(), conversion, *normalizations])(PIXELS)
    finish = pickle.loads(pickle.dumps(Finish(conversion, normalizations))).prepare(CPU)
    before = PIXELS.clone()
    torch.testing.assert_close(finish(PIXELS), expected, rtol=0, atol=0)
    batch = PIXELS.expand(5, 2, 3, 16, 16)
    torch.testing.assert_close(finish(batch), expected.expand(5, 2, 3, 16, 16), rtol=0, atol=0)
    assert torch.equal(PIXELS, before)


def test_bytes_become_numbers_in_the_launch_that_divides_them() -> None:
    """On a GPU each launch reads and writes all pixels of a batch."""
    device = torch.device("meta")  # a CPU has another way
    finish = Finish(ToTensor(), [Normalize(MEAN, STD)]).prepare(device)
    pixels = PIXELS.expand(4, 3, 16, 16).contiguous(memory_format=torch.channels_last).to(device)
    with Launches() as launches:
        finished = finish(pixels)
    assert launches.counts == {"div": 1, "sub_": 1, "div_": 1}
    assert finished.is_contiguous(memory_format=torch.channels_last)


def test_numbers_stay_as_they_are() -> None:
    numbers = PIXELS.float()
    finish = Finish(ToTensor(), [Normalize(MEAN, STD)]).prepare(CPU)
    assert torch.equal(finish(numbers), finish(PIXELS))
    assert torch.equal(numbers, PIXELS.float())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_to_the_bit_on_a_gpu() -> None:
    finish = Finish(ToTensor(), [Normalize(MEAN, STD)])
    on_gpu = finish.prepare(torch.device("cuda"))(PIXELS.cuda()).cpu()
    assert torch.equal(on_gpu, finish.prepare(CPU)(PIXELS))


class Mine(Normalize):
    pass


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (Normalize(MEAN, STD), True),
        (Normalize([0.5], [0.5]), True),
        (Normalize(MEAN, (0.1, 0.0, 0.1)), False),
        (Normalize((0.1, 0.2), (0.1, 0.2)), False),
        (Mine(MEAN, STD), False),
        (ToTensor(), False),
    ],
)
def test_only_what_cannot_fail_is_put_off(transform: Any, expected: bool) -> None:
    assert can_be_put_off(transform) is expected


# ---- batches

HALVES = Finish(ToTensor(), [Normalize([0.5], [0.25])], ("data", "other"))


def test_bytes_under_the_keys_become_floats_and_nothing_else() -> None:
    pixels = PIXELS[None]
    floats, mask = torch.rand(1, 3, 4, 4), torch.ones(2, dtype=torch.uint8)
    batch = {"data": [pixels, [pixels, floats]], "mask": [mask], "label": [torch.zeros(1)]}
    (given,) = move_batches([batch], CPU, overlap=False, finish=HALVES.prepare(CPU))
    expected = (pixels.float() / 255 - 0.5) / 0.25
    torch.testing.assert_close(given["data"][0], expected)
    torch.testing.assert_close(given["data"][1][0], expected)
    assert given["data"][1][1] is floats
    assert given["mask"][0] is mask
    assert given["label"][0] is batch["label"][0]


class NoWaiting(TorchDispatchMode):
    """No value goes from a device to Python."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Tensor:
        assert func not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
        )
        made: Tensor = func(*args, **(kwargs or {}))
        return made


def test_all_of_it_is_made_on_the_device_without_waiting_for_it() -> None:
    meta = torch.device("meta")
    finish = HALVES.prepare(meta)
    batch = {"data": [torch.zeros(2, 3, 4, 4, dtype=torch.uint8)], "data_idx": [torch.arange(2)]}
    with NoWaiting():
        (given,) = move_batches([batch], meta, overlap=True, finish=finish)
    assert (given["data"][0].device.type, given["data"][0].shape) == ("meta", (2, 3, 4, 4))
    assert given["data_idx"][0] is batch["data_idx"][0]
