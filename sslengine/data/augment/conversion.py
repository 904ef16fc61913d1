"""Images of another kind: tensors, other sizes, three channels, L*a*b*; labels as vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sslengine.data.augment.transform import TakesLabels
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


# From linear sRGB to XYZ, and the white of D65 there. The digits are OpenCV's.
TO_XYZ = np.array(
    [
        [0.412453, 0.357580, 0.180423],
        [0.212671, 0.715160, 0.072169],
        [0.019334, 0.119193, 0.950227],
    ]
)
WHITE = np.array([0.950456, 1.0, 1.088754])


@register_transform("ImgPil2LabTensor")
class ImgPil2LabTensor:
    """A float tensor 3 x H x W: L from 0 to 100, a and b from about -127 to 127."""

    def __call__(self, image: Image.Image) -> Tensor:
        levels = np.asarray(image.convert("RGB"))
        ratio = LINEAR[levels] @ TO_XYZ.T / WHITE
        root = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
        x, y, z = np.moveaxis(root, -1, 0)
        lab = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)])
        return torch.from_numpy(lab.astype(np.float32))


def _linear(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """sRGB's curve, undone."""
    return np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)


LINEAR = _linear(np.arange(256) / 255)


@register_transform("OneHotEncode")
class OneHotEncode(TakesLabels):
    """Each label, a class or several, becomes a vector with 1 at those and 0 elsewhere."""

    def __init__(self, num_classes: int = 1000) -> None:
        """num_classes: the length of the vector."""
        if num_classes < 1:
            raise ValueError(f"num_classes: expected 1 or more, got {num_classes}.")
        self.num_classes = num_classes

    def __call__(self, label: Any) -> Tensor:
        classes = torch.as_tensor(label, dtype=torch.int64).flatten()
        if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < self.num_classes:
            raise ValueError(
                f"labels must be from 0 to num_classes - 1, {self.num_classes - 1}; got "
                f"{classes.tolist()}."
            )
        return torch.zeros(self.num_classes, dtype=torch.int64).index_fill_(0, classes, 1)
