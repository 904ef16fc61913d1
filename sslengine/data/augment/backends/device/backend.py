"""The back-end that leaves colour and blur to the device.

Workers decode, crop and flip, and write the rest of the work below the pixels. It is done to whole
batches when they arrive. Between the two the pixels are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
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
        groups: list[Together] = moved
        numbers = [number for group in groups for number in group.numbers]
        images = [image for group in groups for image in _finished(group)]
        return [image for _, image in sorted(zip(numbers, images), key=itemgetter(0))]

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
    todo = schedule(Program(*(np.concatenate(parts) for parts in zip(*programs))))
    pinned = all(parcel.is_pinned() for parcel in parcels)
    return Together(numbers, parcels, todo.pinned() if pinned else todo)


def _finished(group: Together) -> list[Tensor]:
    cut = [parcel[..., : height_of_pixels(parcel), :] for parcel in group.parcels]
    together = torch.cat([each.flatten(0, -4) for each in cut])
    run(group.schedule, together)
    parts = together.split([each.shape[:-3].numel() for each in cut])
    return [part.view(each.shape) for part, each in zip(parts, cut, strict=True)]


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
