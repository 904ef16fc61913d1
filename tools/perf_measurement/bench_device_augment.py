#!/usr/bin/env python3
"""What the device's part of augmentation takes: microseconds a view, beside Pillow on one core.

    python tools/perf_measurement/bench_device_augment.py [--views 64] [--side 224] [--device cpu]

Each operation on all views of a batch, then what SimCLR's list leaves to the device; not the
copy there, and not ToTensor. Rows take turns, and the median of the rounds counts. A CPU has one
thread, and its times, like Pillow's, are CPU time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sslengine.data.augment import operations as ops
from sslengine.data.augment.backends.device.program import height_of_pixels, put_below, read_below
from sslengine.data.augment.backends.device.run import run
from sslengine.data.augment.backends.device.schedule import Schedule, schedule
from sslengine.data.augment.operation import Operation

CPU = torch.device("cpu")
Program = list[Operation]

SINGLE: dict[str, Callable[[], Operation]] = {
    "brightness": lambda: ops.Brightness(random.uniform(0.2, 1.8)),
    "contrast": lambda: ops.Contrast(random.uniform(0.2, 1.8)),
    "saturation": lambda: ops.Saturation(random.uniform(0.2, 1.8)),
    "hue": lambda: ops.Hue(random.uniform(-0.2, 0.2)),
    "grey": lambda: ops.Grey(),
    "solarize": lambda: ops.Solarize(128),
    "posterize": lambda: ops.Posterize(random.randint(4, 8)),
    "invert": lambda: ops.Invert(),
    "autocontrast": lambda: ops.AutoContrast(),
    "equalize": lambda: ops.Equalize(),
    "sharpness": lambda: ops.Sharpness(random.uniform(0.1, 1.9)),
    "blur": lambda: ops.Blur(random.uniform(0.1, 2.0)),
}


def simclr() -> Program:
    program: Program = []
    if random.random() < 0.8:
        jitter = [SINGLE[name]() for name in ("brightness", "contrast", "saturation", "hue")]
        program += random.sample(jitter, 4)
    program += [ops.Grey()] if random.random() < 0.2 else []
    return program + ([SINGLE["blur"]()] if random.random() < 0.5 else [])


ROWS: dict[str, Callable[[], Program]] = {
    **{name: lambda make=make: [make()] for name, make in SINGLE.items()},  # type: ignore[misc]
    "simclr": simclr,
}


def microseconds(work: Callable[[], object], device: torch.device, views: int) -> float:
    gpu = device.type == "cuda"
    clock = time.perf_counter if gpu else time.process_time
    if gpu:
        torch.cuda.synchronize(device)
    began = clock()
    work()
    if gpu:
        torch.cuda.synchronize(device)
    return 1e6 * (clock() - began) / views


def pictures(views: int, side: int) -> list[Image.Image]:
    """Smooth with some noise, like photographs."""
    draw = np.random.default_rng(0)
    coarse = draw.integers(0, 256, (views, 9, 9, 3), np.uint8)
    images = [
        Image.fromarray(each).resize((side, side), Image.Resampling.BICUBIC) for each in coarse
    ]
    noise = draw.integers(-9, 10, (side, side, 3))
    return [
        Image.fromarray((np.asarray(each) + noise).clip(0, 255).astype(np.uint8)) for each in images
    ]


def on_pillow(images: list[Image.Image], programs: list[Program]) -> None:
    for image, program in zip(images, programs):
        for op in program:
            image = op.on_pil(image)


def on_device(todo: Schedule, pixels: Tensor) -> None:
    run(todo, pixels.clone())


def packed(images: list[Image.Image], programs: list[Program]) -> Tensor:
    tensors = (torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images)
    return torch.stack([put_below(*each) for each in zip(tensors, programs)])


def prepared(
    images: list[Image.Image], programs: list[Program], device: torch.device
) -> tuple[Schedule, Tensor]:
    parcels = packed(images, programs)
    todo = schedule(read_below(parcels))
    tables = {code: table.to(device) for code, table in todo.tables.items()}
    which, parameters = todo.which.to(device), todo.parameters.to(device)
    pixels = parcels[:, :, : height_of_pixels(parcels)].contiguous()
    return Schedule(todo.launches, which, parameters, tables), pixels.to(device)


def on_the_host(views: int, side: int, rounds: int) -> float:
    """Reading what is below SimCLR's views, and bringing it into groups."""
    random.seed(0)
    parcels = packed(pictures(views, side), [simclr() for _ in range(views)])
    times = [
        microseconds(lambda: schedule(read_below(parcels)), CPU, views) for _ in range(rounds + 1)
    ]
    return statistics.median(times[1:])


def measure(
    views: int, side: int, rounds: int, device: torch.device
) -> dict[str, tuple[float, float]]:
    """For each row, on the device and by Pillow."""
    images = pictures(views, side)
    random.seed(0)
    programs = {name: [make() for _ in range(views)] for name, make in ROWS.items()}
    work = {name: prepared(images, each, device) for name, each in programs.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ROWS}
    for _ in range(rounds + 1):
        for name in ROWS:
            here = microseconds(partial(on_device, *work[name]), device, views)
            pillow = microseconds(partial(on_pillow, images, programs[name]), CPU, views)
            found[name].append((here, pillow))
    # The first round also takes memory and loads kernels.
    return {
        name: (
            statistics.median(here for here, _ in each[1:]),
            statistics.median(pillow for _, pillow in each[1:]),
        )
        for name, each in found.items()
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    device = torch.device(given.device)
    print(f"{given.views} views of {given.side} x {given.side}; microseconds a view")
    print(f"{'':<14}{given.device:>10}{'Pillow':>10}")
    for name, times in measure(given.views, given.side, given.rounds, device).items():
        print(f"{name:<14}{times[0]:>10.1f}{times[1]:>10.1f}")
    host = on_the_host(given.views, given.side, given.rounds)
    print(f"the host reads and groups what is to be done in {host:.1f} a view")
    return 0


if __name__ == "__main__":
    sys.exit(main())
