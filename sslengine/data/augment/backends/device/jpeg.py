"""The `device` back-end, whose device decodes JPEG files too: by nvJPEG on a GPU.

A worker reads a file's header and draws. Where a view's pixels will be it puts the file's bytes,
and below them what to cut out of the image. A file travels with each view that has room for it
(3 x height x width bytes); smaller views that follow name its number. What does not fit, or is no
plain JPEG, or is more than one crop and flips, is made in the worker as by `device`.

The bytes of a file become other pixels than on a CPU, by a few levels: decoders differ in how
they round, and a crop is scaled here without rounding to bytes between rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode

from sslengine.data.augment.backends.base import Backend
from sslengine.data.augment.backends.device.backend import (
    DeviceBackend,
    divided,
    finished_groups,
    joined,
)
from sslengine.data.augment.backends.device.files import cut_views, cuts_of, files_of
from sslengine.data.augment.backends.device.program import Cut, rows_below
from sslengine.data.augment.operation import Operation, Size
from sslengine.data.augment.operations.crop import Crop
from sslengine.data.augment.operations.flip import FlipLeftRight
from sslengine.data.augment.view import Source, View
from sslengine.data.decode.decoding import Decoder
from sslengine.registry import register_augment_backend

BEGIN, END = b"\xff\xd8\xff", b"\xff\xd9"


class JpegFile:
    """A source that is decoded where its pixels are needed here."""

    def __init__(self, encoded: bytes, size: Size, number: int, decoder: Decoder, by: Backend):
        self.encoded, self.number = encoded, number
        self.shape = (*size, 3)
        self.travels = False  # with a view
        self._decoder, self._by = decoder, by

    @cached_property
    def pixels(self) -> Source:
        return self._by.decode(self.encoded, self._decoder)


@register_augment_backend("device_jpeg")
class DeviceJpegBackend(DeviceBackend):
    def __init__(self) -> None:
        super().__init__()
        self._numbers = iter(count(1))  # a batch comes from one worker

    def decode(self, encoded: bytes, decoder: Decoder) -> Any:
        # A file that was cut off is decoded here, where another sample replaces it.
        if not (encoded.startswith(BEGIN) and encoded.endswith(END)):
            return super().decode(encoded, decoder)
        image = decoder.opened(encoded)
        if not decoder.is_plain_jpeg(image):
            return super().decode(encoded, decoder)
        size = (image.height, image.width)
        return JpegFile(encoded, size, next(self._numbers), decoder, self.worker)

    def image(self, source: Source, ops: Sequence[Operation]) -> Image.Image:
        return super().image(_decoded(source), ops)

    def tensor(self, source: Source, ops: Sequence[Operation]) -> Tensor:
        return super().tensor(_decoded(source), ops)

    def rendered(self, source: Source, ops: Sequence[Operation]) -> Source:
        return super().rendered(_decoded(source), ops)

    def parcel(self, source: Any, ops: Sequence[Operation]) -> Tensor:
        if not isinstance(source, JpegFile):
            return super().parcel(source, ops)
        now, later = divided(ops)
        height, width = View(source, source.shape[:2]).then(now).size  # type: ignore[arg-type]
        room = np.zeros((3, height, width), np.uint8)
        cut = _cut_of(source, now, room.size)
        if cut is None:
            return super().parcel(source.pixels, ops)
        room.reshape(-1)[: cut.length] = np.frombuffer(source.encoded, np.uint8)[: cut.length]
        source.travels = True  # either now or before
        return torch.from_numpy(np.concatenate([room, rows_below(width, later, cut)], axis=1))

    def opened(self, parcels: list[Tensor]) -> Any:
        groups = super().opened(parcels)
        return groups, files_of(groups)

    def finished(self, moved: Any) -> list[Tensor]:
        groups, files = moved
        pixels = [joined(group) for group in groups]
        cut_views(files, pixels)
        return finished_groups(groups, pixels)

    def left_to_the_device(self, parcels: Sequence[Tensor]) -> str:
        groups = super().opened([each[None] for each in parcels])
        share = sum(bool(cut.file) for group in groups for cut in cuts_of(group)) / len(parcels)
        return f"{super().left_to_the_device(parcels)}; of {share:.0%} of the views decoding too"


def _decoded(source: Any) -> Source:
    return source.pixels if isinstance(source, JpegFile) else source


def _cut_of(source: JpegFile, now: Sequence[Operation], room: int) -> Cut | None:
    """None where the worker has to make the pixels."""
    height, width, _ = source.shape
    crop, flips = Crop(0, 0, height, width, to=(height, width)), now
    if now and type(now[0]) is Crop:
        crop, flips = now[0], now[1:]
    fits = len(source.encoded) <= room
    simple = crop.is_compiled((height, width)) and all(type(op) is FlipLeftRight for op in flips)
    if not simple or not (fits or source.travels):
        return None
    return Cut(
        source.number, len(source.encoded) if fits else 0,
        crop.top, crop.left, crop.height, crop.width,
        len(flips) % 2, int(crop.interpolation == InterpolationMode.BICUBIC), height * width,
    )  # fmt: skip
