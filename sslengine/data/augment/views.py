"""Several views of one image: copies, crops of several sizes, PIRL's patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import RandomResizedCrop

from sslengine.data.augment.geometry import Box, ResizedCrop, crop, flip
from sslengine.data.augment.image import Rgb, share, size_of
from sslengine.data.augment.transform import (
    InTurn,
    MakesKeys,
    MakesViews,
    TakesAll,
    expect,
    probability,
    uniform,
)
from sslengine.registry import register_transform


@register_transform("ImgReplicatePil")
class ImgReplicatePil(MakesViews):
    """The image `num_times`, for the transforms that follow to make each another view."""

    takes_arrays = True

    def __init__(self, num_times: int = 2) -> None:
        """num_times: the number of views."""
        self.num_times = num_times

    def __call__(self, image: Any) -> list[Any]:
        """Return so many. image: of any kind, or a tensor."""
        if type(image) is Rgb:
            return [share(image)] * self.num_times
        # Copies, because a transform of the user may draw into the image that it is given.
        copied = image.clone if isinstance(image, Tensor) else image.copy
        return [image, *(copied() for _ in range(self.num_times - 1))]

    @staticmethod
    def count_views(num_times: int = 2) -> int:
        return num_times


def _make_crop(
    size: int, scale: Sequence[float], interpolation: int | str, key: str
) -> ResizedCrop:
    least, most = scale
    expect(0 < least <= most <= 1, key, "two shares above 0 to 1, in order", list(scale))
    kept: Any = interpolation
    return ResizedCrop(RandomResizedCrop(size, (least, most), interpolation=kept))


@register_transform("ImgPilToMultiCrop")
class ImgPilToMultiCrop(MakesViews):
    """Random square crops: `num_crops[i]` of side `size_crops[i]`, one kind after the other."""

    takes_arrays = True

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
        whole = sum(num_crops)
        met = total_num_crops == whole
        expect(met, "total_num_crops", f"the sum of num_crops, {whole}", total_num_crops)
        self.crops: list[ResizedCrop] = []
        for count, size, scale in zip(num_crops, size_crops, crop_scales, strict=True):
            self.crops += [_make_crop(size, scale, interpolation, "crop_scales")] * count

    def __call__(self, image: Any) -> list[Any]:
        share(image)  # a crop at scale 1 is a part of it
        return [crop(image) for crop in self.crops]

    @staticmethod
    def count_views(total_num_crops: int, **_: object) -> int:
        return total_num_crops


@register_transform("RandomResizedCropWithBox")
class RandomResizedCropWithBox(MakesKeys):
    """RandomResizedCrop, then a flip. The batch has the field `box`: of each view left, top, right
    and bottom in pixels of the image; a flip exchanges left and right."""

    takes_arrays = True

    def __init__(
        self, size: int, scale: Sequence[float] = (0.08, 1.0), p: float = 0.5,
        interpolation: int | str = 2,
    ) -> None:  # fmt: skip
        """
        size: the side of the crop, in pixels.
        scale: the least and the greatest share of the image's area.
        p: the probability of the flip.
        interpolation: as RandomResizedCrop takes it: bilinear or 2, bicubic or 3.
        """
        self.crop, self.p = _make_crop(size, scale, interpolation, "scale"), probability(p)

    def __call__(self, image: Any) -> dict[str, Any]:
        top, left, height, width = box = self.crop.draw_box(size_of(image))
        part = crop(share(image), box, self.crop.to, self.crop.interpolation, self.limits)
        sides = [left, left + width]
        if uniform() < self.p:
            part, sides = flip(part), sides[::-1]
        ends = [sides[0], top, sides[1], top + height]
        return {"data": part, "box": torch.tensor(ends, dtype=torch.float32)}


@register_transform("ImgPilMultiCropRandomApply")
class ImgPilMultiCropRandomApply(TakesAll):
    """All the transforms or none, to each crop with the probability that it has in `prob`."""

    takes_arrays = True

    def __init__(self, transforms: Sequence[Any], prob: Sequence[float]) -> None:
        """
        transforms: entries with a name and arguments, as in TRANSFORMS.
        prob: one probability for each crop.
        """
        self.apply = [InTurn(transforms, p) for p in prob]

    def __call__(self, crops: Sequence[Any]) -> list[Any]:
        each = f"one probability for each of the {len(crops)} crops of an image"
        expect(len(crops) == len(self.apply), "prob", each, len(self.apply))
        return [apply(crop) for apply, crop in zip(self.apply, crops)]


@register_transform("ImgPilToPatchesAndImage")
class ImgPilToPatchesAndImage(MakesViews):
    """PIRL's input: a crop of the image, then the patches of another crop in random order.

    The second crop is cut into a square grid, column by column, and each patch is a cell
    less PATCH_JITTER pixels a side, at a random place in it.
    """

    takes_arrays = True
    PATCH_JITTER: ClassVar[int] = 21

    def __init__(
        self,
        crop_scale_image: Sequence[float] = (0.08, 1.0),
        crop_size_image: int = 224,
        crop_scale_patches: Sequence[float] = (0.6, 1.0),
        crop_size_patches: int = 255,
        permute_patches: bool = True,
        num_patches: int = 9,
    ) -> None:
        """
        crop_scale_image, crop_scale_patches: the least and greatest share of the image's area in
            the crop.
        crop_size_image: the side of the first crop, in pixels.
        crop_size_patches: the side of the crop that is cut into patches, in pixels.
        permute_patches: false: the patches stay in the order of the grid.
        num_patches: a square number.
        """
        self.side = math.isqrt(num_patches)
        self.cell = crop_size_patches // max(1, self.side)
        self.patch = self.cell - self.PATCH_JITTER
        expect(self.side**2 == num_patches >= 1, "num_patches", "a square number", num_patches)
        least = self.side * (self.PATCH_JITTER + 1)
        expect(self.patch >= 1, "crop_size_patches", f"{least} or more", crop_size_patches)
        self.permute = permute_patches
        self.crop_image = _make_crop(crop_size_image, crop_scale_image, 2, "crop_scale_image")
        self.crop_patches = _make_crop(
            crop_size_patches, crop_scale_patches, 2, "crop_scale_patches"
        )

    def __call__(self, image: Any) -> list[Any]:
        share(image)
        whole, part = self.crop_image(image), share(self.crop_patches(image))
        boxes = self._draw_cells()
        if self.permute:
            order = np.random.permutation(len(boxes))  # noqa: NPY002
            boxes = [boxes[number] for number in order]
        return [whole, *(crop(part, box, box[2:]) for box in boxes)]

    def _draw_cells(self) -> list[Box]:
        """Return where the patches are in the second crop."""
        jitter = np.random.randint(0, self.PATCH_JITTER, (2, self.side, self.side))  # noqa: NPY002
        left, top = (jitter + self.cell * np.indices(jitter.shape[1:])).reshape(2, -1).tolist()
        return [(*at, self.patch, self.patch) for at in zip(top, left)]

    @staticmethod
    def count_views(**arguments: object) -> int:
        return 1  # patches are another input of the model, not views that share a batch
