"""Seldom transforms: L*a*b*, and Classy Vision's of images and of clips under their names."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sslengine.registry import TRANSFORMS, register_transform

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports torchvision's deprecated video transforms
    from classy_vision.dataset.transforms import TRANSFORM_REGISTRY

# Of its others, imagenet_autoaugment fails with numpy 2 (torchvision's AutoAugment has that
# policy), and the rest take whole samples of Classy's datasets.
NAMES = (
    "imagenet_augment", "imagenet_no_augment", "lighting", "video_clip_random_resize_crop",
    "video_clip_resize", "video_default_augment", "video_default_no_augment",
)  # fmt: skip

TRANSFORMS.adopt(__name__, {name: TRANSFORM_REGISTRY[name] for name in NAMES})

# From linear sRGB to XYZ, and the white of D65 there. The digits are OpenCV's.
TO_XYZ = np.array([[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169],
                   [0.019334, 0.119193, 0.950227]])  # fmt: skip
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
    """Undo sRGB's curve."""
    return np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)


LINEAR = _linear(np.arange(256) / 255)
