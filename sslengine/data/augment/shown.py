"""What TRANSFORMS make of an image, as pictures to look at: before normalisation, as RGB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import Normalize

from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.decode.files import as_rgb
from sslengine.errors import DataError


def pictures_of(image: Any, pipeline: Pipeline) -> Iterator[Image.Image]:
    """Yield a picture, or one of each patch where the image is a tensor of patches."""
    if isinstance(image, Image.Image):
        yield image.convert("RGB")
        return
    if not isinstance(image, Tensor) or image.ndim not in (3, 4):
        raise DataError(
            f"a picture is made of images, and the TRANSFORMS give {type(image).__name__}."
        )
    values = as_before_normalize(image.detach().float().cpu(), pipeline)
    for each in values if values.ndim == 4 else [values]:
        yield picture_of(each)


def picture_of(values: Tensor) -> Image.Image:
    """Draw a tensor C x H x W, 0 to 1; other values, as of 16 bits, are scaled to their range."""
    pixels = values.movedim(0, -1).numpy()
    if values.min() < -1 or values.max() > 2:
        return as_rgb(pixels)
    shown = (255 * values.clamp(0, 1)).round().byte().movedim(0, -1).numpy()
    return Image.fromarray(shown[..., :3] if shown.shape[-1] >= 3 else shown[..., 0]).convert("RGB")


def as_before_normalize(values: Tensor, pipeline: Pipeline) -> Tensor:
    for step in reversed(pipeline.steps):
        if isinstance(step.transform, Normalize):
            mean, std = (torch.tensor(each) for each in (step.transform.mean, step.transform.std))
            values = values * std.view(-1, 1, 1) + mean.view(-1, 1, 1)
    return values
