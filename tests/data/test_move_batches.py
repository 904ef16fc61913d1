from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torchvision.transforms import Normalize, ToTensor

from sslengine.data.augment.tensors import CPU, Finish
from sslengine.data.feed import move_batches, start_ahead
from tests.gpu.place import nothing_waits


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_each_item_starts_before_the_one_before_it_is_given_out(count: int) -> None:
    events: list[str] = []

    def items() -> Iterator[int]:
        for number in range(count):
            events.append(f"read {number}")
            yield number

    def start(number: int) -> int:
        events.append(f"start {number}")
        return 10 * number

    def finish(started: int) -> int:
        events.append(f"finish {started // 10}")
        return started + 1

    given = []
    for value in start_ahead(items(), start, finish):
        events.append(f"use {value // 10}")
        given.append(value)
    assert given == [10 * number + 1 for number in range(count)]
    expected = []
    for number in range(count + 1):
        if number < count:
            expected += [f"read {number}", f"start {number}"]
        if number > 0:
            expected += [f"finish {number - 1}", f"use {number - 1}"]
    assert events == expected


def test_an_error_on_the_way_is_passed_on() -> None:
    def items() -> Iterator[int]:
        yield 0
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        list(start_ahead(items(), lambda item: item, lambda item: item))


def test_on_the_cpu_batches_are_as_they_are() -> None:
    batch = {"data": [torch.zeros(2)], "data_idx": [torch.arange(2)]}
    (given,) = move_batches([batch], torch.device("cpu"), overlap=True)
    assert given is batch


def test_all_but_the_indices_is_moved() -> None:
    batch = {"data": [torch.zeros(2), torch.ones(3)], "data_idx": [torch.arange(2)]}
    (given,) = move_batches([batch], torch.device("meta"), overlap=True)
    assert [tensor.device.type for tensor in given["data"]] == ["meta", "meta"]
    assert given["data"][1].shape == (3,)
    assert given["data_idx"][0] is batch["data_idx"][0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("overlap", [True, False])
def test_on_a_gpu_batches_arrive_whole_and_in_order_without_waiting(overlap: bool) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    batches = [
        {
            "data": [torch.full((1 << 20,), float(number)).pin_memory()],
            "crops": [[torch.full((side,), float(number)).pin_memory() for side in (1 << 20, 8)]],
            "data_idx": [torch.tensor([number])],
        }
        for number in range(8)
    ]
    sums, crops = [], []
    with nothing_waits():
        for batch in move_batches(batches, device, overlap):
            busy = torch.ones(2048, 2048, device=device)
            for _ in range(8):
                busy = busy @ busy / 2048
            sums.append((batch["data"][0].sum() / (1 << 20), batch["data_idx"][0]))
            crops.append([crop.mean() for crop in batch["crops"][0]])
    assert [float(mean) for mean, _ in sums] == list(range(8))
    assert [list(map(float, means)) for means in crops] == [[float(n)] * 2 for n in range(8)]
    assert [int(index) for _, index in sums] == list(range(8))
    assert all(index.device.type == "cpu" for _, index in sums)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("overlap", [True, False])
def test_on_a_gpu_images_are_finished_without_waiting(overlap: bool) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    finish = Finish(ToTensor(), [Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])], ("data",))
    pixels = [torch.randint(256, (64, 3, 96, 96), dtype=torch.uint8) for _ in range(6)]
    batches = [{"data": [each.pin_memory()], "data_idx": [torch.zeros(1)]} for each in pixels]
    given = []
    with nothing_waits():
        for batch in move_batches(batches, device, overlap, finish.prepare(device)):
            busy = torch.ones(2048, 2048, device=device)
            for _ in range(8):
                busy = busy @ busy / 2048
            given.append(batch["data"][0])
    for each, images in zip(pixels, given, strict=True):
        torch.testing.assert_close(images.cpu(), finish.prepare(CPU)(each), rtol=0, atol=0)


def test_batches_of_any_form_are_moved() -> None:
    class Pair(NamedTuple):
        image: torch.Tensor
        name: str

    batch = [{"image": torch.zeros(2), "size": (3, 4)}, Pair(torch.ones(1), "b")]
    (given,) = move_batches([batch], torch.device("meta"), overlap=True)
    assert given[0]["image"].device.type == given[1].image.device.type == "meta"
    assert (given[0]["size"], given[1].name, type(given[1])) == ((3, 4), "b", Pair)
