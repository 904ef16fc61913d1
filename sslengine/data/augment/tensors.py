"""Images become tensors: conversions, and what ToTensor and Normalize do to pixels, put off until a
batch is on the device. Tensors become pictures again. Labels become vectors.

What is put off is computed in float32 and in the same order of operations, so that the values are
the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import Normalize, ToTensor

from sslengine.data.augment.transform import TakesLabels, expect
from sslengine.data.decode.decoding import as_rgb
from sslengine.errors import DataError
from sslengine.registry import register_transform

CPU = torch.device("cpu")


# ---- conversions


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


@register_transform("OneHotEncode")
class OneHotEncode(TakesLabels):
    """Each label, a class or several, becomes a vector with 1 at those and 0 elsewhere."""

    def __init__(self, num_classes: int = 1000) -> None:
        """num_classes: the length of the vector."""
        self.num_classes = num_classes

    def __call__(self, label: Any) -> Tensor:
        classes = torch.as_tensor(label, dtype=torch.int64).flatten()
        fits = all(0 <= each < self.num_classes for each in classes.tolist())
        expect(fits, "labels", f"0 to num_classes - 1, {self.num_classes - 1}", classes.tolist())
        return torch.zeros(self.num_classes, dtype=torch.int64).index_fill_(0, classes, 1)


def _channels_first(image: Any) -> Tensor:
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    # A copy: the pixels of an image cannot be written to.
    return torch.from_numpy(np.array(np.moveaxis(pixels, -1, 0), np.float32, order="C"))


# ---- what waits until after collate

# By exact type: what a subclass does is not known. What each divides pixels by.
CONVERSIONS: dict[type, tuple[float, ...]] = {
    ToTensor: (255.0,),
    ImgToTensor: (255.0,),
    ImgPilToRawTensor: (),
}


class Finish:
    """`finish(pixels)` gives float32 of uint8 pixels [...] x channels x height x width."""

    def __init__(
        self,
        conversion: Any,
        normalizations: Sequence[Normalize] = (),
        image_keys: Sequence[str] = (),
    ) -> None:
        """image_keys: of a batch, those that hold images."""
        numbers = [("div", divisor) for divisor in CONVERSIONS[type(conversion)]]
        for each in normalizations:
            numbers += [("sub", each.mean), ("div", each.std)]
        # Tensors, not numbers: instead of dividing by a number CUDA multiplies with its inverse.
        self.operations = [(name, torch.from_numpy(_column(each))) for name, each in numbers]
        self.image_keys = tuple(image_keys)

    def prepare(self, device: torch.device) -> Finish:
        """Put its numbers on the device, so that no step waits for them."""
        made = copy(self)
        made.operations = [(name, each.to(device)) for name, each in self.operations]
        return made

    def finish_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with its uint8 images as the TRANSFORMS say, on the stream of its copy;
        the host does not wait. Other images were finished by the worker."""
        images = {key: self._finish_all(batch[key]) for key in self.image_keys if key in batch}
        return {**batch, **images}

    def _finish_all(self, values: Any) -> Any:
        if isinstance(values, list):  # collators nest lists
            return [self._finish_all(value) for value in values]
        return self(values) if is_uint8(values) else values

    def __call__(self, pixels: Tensor) -> Tensor:
        operations = self.operations
        if operations and not pixels.is_cpu:
            # Float32 numbers convert the pixels too: one pass over them. A CPU is faster with two.
            (name, numbers), *operations = operations
            values: Tensor = getattr(torch, name)(pixels, numbers)
        else:
            values = pixels.to(torch.float32, copy=bool(operations))
        for name, numbers in operations:
            getattr(values, f"{name}_")(numbers)
        return values


def can_be_put_off(transform: Any) -> bool:
    """Is this a Normalize, and one that cannot fail on RGB?"""
    if type(transform) is not Normalize:
        return False
    mean, std = _column(transform.mean), _column(transform.std)
    return {mean.size, std.size} <= {1, 3} and bool((std != 0).all())


def is_uint8(images: Any) -> bool:
    return isinstance(images, Tensor) and images.dtype == torch.uint8


def _column(numbers: Any) -> NDArray[np.float32]:
    """Return one number for each channel."""
    column = np.array(numbers, np.float32)
    return column.reshape(-1, 1, 1) if column.ndim == 1 else column


# ---- pictures: before normalisation, as RGB. pipeline: that made the image


def pictures_of(image: Any, pipeline: Any) -> Iterator[Image.Image]:
    """Yield a picture, or one of each patch where the image is a tensor of patches."""
    if isinstance(image, Image.Image):
        yield image.convert("RGB")
        return
    if not isinstance(image, Tensor) or image.ndim not in (3, 4):
        raise DataError(
            f"a picture is made of images, and the TRANSFORMS give {type(image).__name__}."
        )
    values = undo_normalize(image.detach().float().cpu(), pipeline)
    for each in values if values.ndim == 4 else [values]:
        yield picture_of(each)


def picture_of(values: Tensor) -> Image.Image:
    """Draw a tensor C x H x W, 0 to 1; other values, as of 16 bits, are scaled to their range."""
    pixels = values.movedim(0, -1).numpy()
    if values.min() < -1 or values.max() > 2:
        return as_rgb(pixels)
    shown = (255 * values.clamp(0, 1)).round().byte().movedim(0, -1).numpy()
    return Image.fromarray(shown[..., :3] if shown.shape[-1] >= 3 else shown[..., 0]).convert("RGB")


def undo_normalize(values: Tensor, pipeline: Any) -> Tensor:
    for step in reversed(pipeline.listed):
        if isinstance(step.named, Normalize):
            mean, std = (torch.tensor(each) for each in (step.named.mean, step.named.std))
            values = values * std.view(-1, 1, 1) + mean.view(-1, 1, 1)
    return values
