"""The back-end that leaves colour and blur to the device.

Workers decode, crop and flip, and write the rest of the work below the pixels. It is done to whole
batches when they arrive. Between the two the pixels are not read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sslengine.data.augment.backends.base import Backend, build_backend
from sslengine.data.augment.backends.device.program import (
    CODES,
    KERNELS,
    SLOTS,
    Program,
    height_of_pixels,
    read_below,
    rows_below,
)
from sslengine.data.augment.backends.device.run import run
from sslengine.data.augment.backends.device.schedule import Schedule, schedule
from sslengine.data.augment.operation import Operation
from sslengine.data.augment.operations.flip import FlipLeftRight
from sslengine.data.augment.view import Source, View
from sslengine.data.decode.decoding import Decoder
from sslengine.registry import register_augment_backend

CAN_WAIT = {FlipLeftRight, *CODES}


class Together(NamedTuple):
    """Parcels of one size, of whose views those with the same operation next go together."""

    numbers: list[int]  # among all parcels
    parcels: list[Tensor]  # as they come from the collator
    schedule: Schedule
    cuts: NDArray[np.int32]  # of each view


@register_augment_backend("device")
class DeviceBackend(Backend):
    packs: ClassVar[bool] = True

    def __init__(self) -> None:
        self.worker = build_backend("auto")  # makes the pixels that leave a worker

    @property
    def modules(self) -> tuple[str, ...]:
        return (*super().modules, *self.worker.modules)

    def decode(self, encoded: bytes, decoder: Decoder) -> Source:
        return self.worker.decode(encoded, decoder)

    def image(self, source: Source, ops: Sequence[Operation]) -> Image.Image:
        return self.worker.image(source, ops)

    def tensor(self, source: Source, ops: Sequence[Operation]) -> Tensor:
        return self.worker.tensor(source, ops)

    def rendered(self, source: Source, ops: Sequence[Operation]) -> Source:
        return self.worker.rendered(source, ops)

    def parcel(self, source: Source, ops: Sequence[Operation]) -> Tensor:
        now, later = divided(ops)
        _, width = View.of(source).then(now).size
        return self.worker.tensor_above(source, now, rows_below(width, later))

    def opened(self, parcels: list[Tensor]) -> list[Together]:
        by_size: dict[torch.Size, list[int]] = {}
        for number, parcel in enumerate(parcels):
            by_size.setdefault(parcel.shape[-3:], []).append(number)
        return [
            _together(numbers, [parcels[number] for number in numbers])
            for numbers in by_size.values()
        ]

    def finished(self, moved: Any) -> list[Tensor]:
        return finished_groups(moved, [joined(group) for group in moved])

    def left_to_the_device(self, parcels: Sequence[Tensor]) -> str:
        codes = np.concatenate([read_below(parcel[None]).codes for parcel in parcels])
        counts = np.bincount(codes[codes > 0], minlength=len(KERNELS) + 1)[1:] / len(parcels)
        each = [f"{kind.__name__} {n:.2g}" for kind, n in zip(KERNELS, counts) if n]
        return (
            f"left to the device, of a view on average: {', '.join(each) or 'nothing'}; what comes "
            f"before a crop, or before a transform that falls back, is done in the worker"
        )


def _together(numbers: list[int], parcels: list[Tensor]) -> Together:
    programs = [read_below(parcel) for parcel in parcels]
    program = Program(*(np.concatenate(parts) for parts in zip(*programs)))
    todo = schedule(program)
    pinned = all(parcel.is_pinned() for parcel in parcels)
    return Together(numbers, parcels, todo.pinned() if pinned else todo, program.cuts)


def joined(group: Together) -> Tensor:
    """The pixels of its views, [views, 3, height, width]: a copy."""
    return torch.cat([pixels_of(parcel) for parcel in group.parcels])


def pixels_of(parcel: Tensor) -> Tensor:
    """[views, 3, height, width]"""
    return parcel[..., : height_of_pixels(parcel), :].flatten(0, -4)


def finished_groups(groups: Sequence[Together], pixels: Sequence[Tensor]) -> list[Tensor]:
    """The groups' operations on their pixels, in place: an image, or several, for each parcel."""
    images: dict[int, Tensor] = {}
    for group, whole in zip(groups, pixels, strict=True):
        run(group.schedule, whole)
        shapes = [(*parcel.shape[:-2], *whole.shape[-2:]) for parcel in group.parcels]
        parts = whole.split([math.prod(shape[:-3]) for shape in shapes])
        made = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        images.update(zip(group.numbers, made, strict=True))
    return [images[number] for number in sorted(images)]


def divided(ops: Sequence[Operation]) -> tuple[list[Operation], list[Operation]]:
    """What a worker does, and what the device does after it, SLOTS operations at most."""
    begin = len(ops)  # A crop looks at pixels that those before it made: these cannot wait.
    while begin and type(ops[begin - 1]) in CAN_WAIT:
        begin -= 1
    flips: list[Operation] = []
    later: list[Operation] = []
    for op in ops[begin:]:  # To the bit, a flip may come before any of the others.
        (flips if type(op) is FlipLeftRight else later).append(op)
    too_many = max(0, len(later) - SLOTS)
    return [*ops[:begin], *flips, *later[:too_many]], later[too_many:]
