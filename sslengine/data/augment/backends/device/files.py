"""Encoded files in the place of pixels: found in a batch, decoded on the device, cut to views."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.io import ImageReadMode, decode_jpeg

from sslengine.data.augment.backends.device.backend import Together, pixels_of
from sslengine.data.augment.backends.device.program import Cut
from sslengine.errors import DataError

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")
# Files are decoded some at a time: with this many pixels together, or one file.
PIXELS_AT_ONCE = 1 << 26


class Use(NamedTuple):
    group: int
    view: int  # among the group's
    cut: Cut


@dataclass
class File:
    """No tuple: what moves a batch leaves the bytes on the host."""

    encoded: Tensor
    uses: list[Use] = field(default_factory=list)

    @property
    def pixels(self) -> int:
        return self.uses[0].cut.pixels


def cuts_of(group: Together) -> list[Cut]:
    return [Cut(*each) for each in group.cuts.tolist()]


def files_of(groups: Sequence[Together]) -> list[File]:
    uses = [
        Use(number, view, cut)
        for number, group in enumerate(groups)
        for view, cut in enumerate(cuts_of(group))
        if cut.file
    ]
    files: dict[int, File] = {}
    for use in uses:
        if use.cut.length and use.cut.file not in files:
            files[use.cut.file] = File(_bytes_of(groups[use.group], use))
    for use in uses:
        if use.cut.file not in files:
            raise DataError(
                "A view's file travelled under another key of the batch: "
                "config.DATA.AUGMENT_BACKEND=device_jpeg needs a collator that keeps the views "
                "of an image under one key. device takes any that only moves images."
            )
        files[use.cut.file].uses.append(use)
    return list(files.values())


def _bytes_of(group: Together, use: Use) -> Tensor:
    """A copy: the batch's memory may be used again."""
    view = use.view
    for parcel in group.parcels:
        views = pixels_of(parcel)
        if view < len(views):
            return views[view].reshape(-1)[: use.cut.length].clone()
        view -= len(views)
    raise IndexError(use.view)


def cut_views(files: Sequence[File], pixels: Sequence[Tensor]) -> None:
    """Decode the files, and put what their views are of them into the pixels of the groups."""
    for file, image in _decoded(files, pixels[0].device if pixels else CPU):
        for use in file.uses:
            target = pixels[use.group][use.view]
            target.copy_(_view_of(image, use.cut, target.shape[-2:]))


def _decoded(files: Sequence[File], device: torch.device) -> Iterator[tuple[File, Tensor]]:
    """Each file and its image, uint8 3 x height x width, some in memory at a time."""
    waiting: list[File] = []
    total = 0
    for file in files:
        if waiting and total + file.pixels > PIXELS_AT_ONCE:
            yield from _images_of(waiting, device)
            waiting, total = [], 0
        waiting.append(file)
        total += file.pixels
    if waiting:
        yield from _images_of(waiting, device)


def _images_of(files: Sequence[File], device: torch.device) -> Iterator[tuple[File, Tensor]]:
    encoded = [file.encoded for file in files]
    try:
        images = _by_torchvision(encoded, device)
    except RuntimeError as error:  # of one of them: the others are not given either
        logger.warning("Pillow decodes %d files, one of which is refused: %s", len(files), error)
        images = [_by_pillow(each).to(device) for each in encoded]
    yield from zip(files, images)


def _by_torchvision(encoded: list[Tensor], device: torch.device) -> list[Tensor]:
    images: Any = decode_jpeg(encoded, ImageReadMode.RGB, device)  # deprecated since 0.29
    return images  # type: ignore[no-any-return]


def _by_pillow(encoded: Tensor) -> Tensor:
    with Image.open(BytesIO(encoded.numpy().tobytes()), formats=["JPEG"]) as image:
        pixels: NDArray[np.uint8] = np.array(image.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _view_of(image: Tensor, cut: Cut, to: Sequence[int]) -> Tensor:
    part = image[:, cut.top : cut.top + cut.height, cut.left : cut.left + cut.width]
    if (cut.height, cut.width) != tuple(to):
        mode = "bicubic" if cut.cubic else "bilinear"
        part = interpolate(part[None].float(), tuple(to), mode=mode, antialias=True)[0]
        part = part.round_().clamp_(0, 255)
    return part.flip(-1) if cut.flip else part
