"""Images of another kind: tensors, other sizes, three channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sslengine.registry import register_transform


@register_transform("ImgToTensor")
class ImgToTensor:
    """A float tensor C x H x W, from 0 to 1."""

    def __call__(self, image: Any) -> Tensor:
        return _channels_first(image).div_(255)


@register_transform("ImgPilToRawTensor")
class ImgPilToRawTensor:
    """A float tensor C x H x W with the pixels' own values."""

    def __call__(self, image: Any) -> Tensor:
        return _channels_first(image)


@register_transform("ImgPilResizeLargerSide")
class ImgPilResizeLargerSide:
    """The larger side becomes `size` pixels, the other follows."""

    def __init__(self, size: int = 1024) -> None:
        """size: pixels of the larger side."""
        if size < 1:
            raise ValueError(f"size: expected 1 or more, got {size}.")
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        factor = self.size / max(image.size)
        width, height = (max(1, round(side * factor)) for side in image.size)
        return image.resize((width, height), Image.Resampling.BILINEAR)


@register_transform("MNISTImgPil2RGB")
class MNISTImgPil2RGB:
    """The image in RGB; with a `size`, pasted at `box` onto black of that size."""

    def __init__(self, size: int | Sequence[int] = (), box: Sequence[int] = (0, 0)) -> None:
        """
        size: width and height, or one number for both.
        box: the left and top corner.
        """
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.box = tuple(box)
        if len(self.size) not in (0, 2):
            raise ValueError(f"size: expected a number, two, or nothing; got {size}.")
        if len(self.box) != 2:
            raise ValueError(f"box: expected the left and top corner, got {box}.")

    def __call__(self, image: Image.Image) -> Image.Image:
        if not self.size:
            return image.convert("RGB")
        canvas = Image.new("RGB", (self.size[0], self.size[1]))
        canvas.paste(image, (self.box[0], self.box[1]))
        return canvas


def _channels_first(image: Any) -> Tensor:
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    # A copy: the pixels of an image cannot be written to.
    return torch.from_numpy(np.array(np.moveaxis(pixels, -1, 0), np.float32, order="C"))
