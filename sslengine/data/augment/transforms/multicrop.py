"""Crops of several sizes of one image, and what is done to each, with a probability per crop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any

from PIL import Image
from torchvision.transforms import Compose, RandomApply, RandomResizedCrop

from sslengine.data.augment.drawing import draw_of
from sslengine.data.augment.draws import Draw
from sslengine.data.augment.operation import Operation, Size
from sslengine.data.augment.transform import MakesViews, TakesAll, probability
from sslengine.registry import register_transform


@register_transform("ImgPilToMultiCrop")
class ImgPilToMultiCrop(MakesViews):
    """Random square crops: `num_crops[i]` of side `size_crops[i]`, one kind after the other."""

    def __init__(
        self,
        total_num_crops: int,
        num_crops: Sequence[int],
        size_crops: Sequence[int],
        crop_scales: Sequence[Sequence[float]],
        interpolation: int | str = 2,
    ) -> None:
        """
        total_num_crops: the sum of num_crops.
        num_crops: the number of crops of each kind.
        size_crops: the side of each kind's crops, in pixels.
        crop_scales: for each kind, the least and the greatest share of the image's area.
        interpolation: as RandomResizedCrop takes it: bilinear or 2, bicubic or 3.
        """
        if not len(num_crops) == len(size_crops) == len(crop_scales):
            raise ValueError(
                f"num_crops, size_crops and crop_scales: expected one entry in each for every "
                f"kind of crop, got {len(num_crops)}, {len(size_crops)} and {len(crop_scales)}."
            )
        if sum(num_crops) != total_num_crops or total_num_crops < 1:
            raise ValueError(
                f"total_num_crops: expected the sum of num_crops, {sum(num_crops)}, and at least "
                f"1; got {total_num_crops}."
            )
        self.crops = [
            crop
            for count, size, scale in zip(num_crops, size_crops, crop_scales)
            for crop in repeat(_crop(size, scale, interpolation), count)
        ]

    def __call__(self, image: Image.Image) -> list[Image.Image]:
        return [crop(image) for crop in self.crops]

    def draw(self, size: Size) -> list[list[Operation]]:
        return [draw(size) for draw in self._draws]

    @cached_property
    def _draws(self) -> list[Draw]:
        return [draw_of(crop) for crop in self.crops]

    @staticmethod
    def count_views(total_num_crops: int, **_: object) -> int:
        return total_num_crops


@register_transform("ImgPilMultiCropRandomApply")
class ImgPilMultiCropRandomApply(TakesAll):
    """All the transforms or none, to each crop with the probability that it has in `prob`."""

    def __init__(self, transforms: Sequence[Any], prob: Sequence[float]) -> None:
        """
        transforms: entries with a name and arguments, as in TRANSFORMS.
        prob: one probability for each crop.
        """
        change = Compose(list(transforms))
        self.apply: list[Callable[[Any], Any]] = [
            RandomApply([change], probability(p)) for p in prob
        ]

    def inner(self) -> Sequence[Any]:
        return self.apply

    def __call__(self, crops: Sequence[Any]) -> list[Any]:
        self._check_count(len(crops))
        return [apply(crop) for apply, crop in zip(self.apply, crops)]

    def draw(self, sizes: Sequence[Size]) -> list[list[Operation]]:
        self._check_count(len(sizes))
        return [draw(size) for draw, size in zip(self._draws, sizes)]

    @cached_property
    def _draws(self) -> list[Draw]:
        return [draw_of(apply) for apply in self.apply]

    def _check_count(self, crops: int) -> None:
        if crops != len(self.apply):
            raise ValueError(
                f"prob: expected one probability for each of the {crops} crops of an image, "
                f"got {len(self.apply)}."
            )


def _crop(size: int, scale: Sequence[float], interpolation: int | str) -> RandomResizedCrop:
    crop: RandomResizedCrop = RandomResizedCrop(
        size,
        _scale(scale),
        interpolation=interpolation,  # type: ignore[arg-type] # torchvision takes Pillow's numbers
    )
    return crop


def _scale(scale: Sequence[float]) -> tuple[float, float]:
    match tuple(scale):
        case (low, high) if 0 < low <= high <= 1:
            return low, high
    raise ValueError(
        f"crop_scales: expected two shares of the area in order, such as [0.14, 1]; got {scale}."
    )
