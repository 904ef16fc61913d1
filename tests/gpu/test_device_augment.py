"""The device's part of augmentation on a GPU: the values of a CPU, and the host does not wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sslengine.data.augment import operations as ops
from sslengine.data.augment.backends.device.run import run
from sslengine.data.augment.operations.blur import boxes
from sslengine.data.feed import DataFeed
from sslengine.data.loading.device_prefetch import on_device
from sslengine.data.options import DataOptions, split_options
from tests.data.augment.backends.device import test_colour, test_levels
from tests.data.augment.backends.device.cases import Kernel, kernel_of, noise
from tests.data.augment.backends.device.test_blur import blur, radii
from tests.data.augment.backends.device.test_colour import ALL, colours
from tests.data.augment.lists import LISTS
from tests.gpu.place import nothing_waits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def feed(device: str, name: str, collate: str, overlap: bool = True) -> DataFeed:
    split = split_options(
        DATA_SOURCES=["synthetic"],
        RANDOM_SYNTHETIC_IMAGES=True,
        DEFAULT_GRAY_IMG_SIZE=20,
        DATA_LIMIT=32,
        LABEL_TYPE="sample_index",
        BATCHSIZE_PER_REPLICA=8,
        TRANSFORMS=LISTS[name],
        COLLATE_FUNCTION=collate,
    )
    options = DataOptions(
        TRAIN=split,
        NUM_DATALOADER_WORKERS=0,
        AUGMENT_BACKEND="device",
        ENABLE_ASYNC_GPU_COPY=overlap,
    )
    return DataFeed(options, "TRAIN", training=True, seed=3, device=device)


def images(batch: Any) -> list[Tensor]:
    (data,) = batch["data"]
    return data if isinstance(data, list) else [data]


CASES = [
    *test_colour.CASES,
    *test_levels.CASES,
    (kernel_of(ops.Sharpness), ops.Sharpness(1.7), 1.7),
]


@pytest.mark.parametrize(
    ("kernel", "operation", "parameter"),
    CASES,
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_all_colours(kernel: Kernel, operation: Any, parameter: float) -> None:
    pixels, parameters = colours(ALL), torch.tensor([parameter])
    expected = kernel(pixels, parameters)
    assert torch.equal(kernel(pixels.cuda(), parameters.cuda()).cpu(), expected)


def test_blur() -> None:
    pixels = noise(2, 3, 40, 37)
    for radius in radii():
        reach, weight = boxes(np.full(2, radius, np.float32))
        weights = torch.from_numpy(weight)
        made = blur(pixels.cuda(), weights.cuda(), int(reach[0]))
        assert torch.equal(made.cpu(), blur(pixels, weights, int(reach[0])))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("name", "collate"), [("simclr", "simclr_collator"), ("dino", "multicrop_collator")]
)
def test_batches_are_those_of_a_cpu(name: str, collate: str, overlap: bool) -> None:
    there = feed("cuda", name, collate, overlap).batches(1)
    for ours, theirs in zip(there, feed("cpu", name, collate).batches(1), strict=True):
        for made, expected in zip(images(ours), images(theirs), strict=True):
            assert made.is_cuda
            assert torch.equal(made.cpu(), expected)


@pytest.mark.parametrize("overlap", [True, False])
def test_the_host_does_not_wait(overlap: bool) -> None:
    some = feed("cuda", "simclr", "simclr_collator")
    backend = some.dataset.plan.backend
    arrival = some.dataset.arrival(torch.device("cuda"))
    assert arrival is not None
    some._sampler.set_window(epoch=1)
    loaded = list(some._loader.batches())
    opened = [group for batch in loaded for group in backend.opened(batch["data"])]
    assert all(group.schedule.which.is_pinned() for group in opened)
    with nothing_waits():
        made = list(on_device(loaded, torch.device("cuda"), overlap, arrival))
    assert all(image.is_cuda for batch in made for image in images(batch))


def test_a_schedule_runs_without_waiting() -> None:
    some = feed("cuda", "dino", "multicrop_collator")
    backend = some.dataset.plan.backend
    some._sampler.set_window(epoch=1)
    (crops,) = next(iter(some._loader.batches()))["data"]
    _, (parcels, *_), todo, _ = backend.opened(crops)[0]
    moved = todo._replace(
        which=todo.which.cuda(),
        parameters=todo.parameters.cuda(),
        tables={code: table.cuda() for code, table in todo.tables.items()},
    )
    pixels = torch.cat([parcels.cuda()[:, :, :32]] * 2)
    with nothing_waits():
        run(moved, pixels)
