"""TRANSFORMS lists that are compared with torchvision's own classes, and transforms of a user's own among them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor
from torchvision.transforms import RandomHorizontalFlip

from sslengine.data.augment.blur import ImgPilGaussianBlur
from sslengine.data.augment.transform import TakesAll

HERE = "tests.data.augment.lists"
Entries = list[dict[str, Any]]


class Posterize:
    """Draws from all three streams."""

    def __call__(self, image: Image.Image) -> Image.Image:
        bits = random.randint(2, 7) - int(np.random.rand() < 0.5)  # noqa: NPY002
        return ImageOps.posterize(image, bits) if torch.rand(1) < 0.7 else image


class Scribble:
    """Draws into the image that it is given."""

    def __call__(self, image: Image.Image) -> Image.Image:
        ImageDraw.Draw(image).line([(0, 0), image.size], fill=(random.randint(0, 255), 0, 0))
        return image


class Masked:
    """Adds a key to the sample."""

    def __call__(self, image: Image.Image) -> dict[str, Any]:
        return {"data": ImageOps.mirror(image), "mask": torch.ones(2, dtype=torch.uint8)}


class SometimesArray:
    """Floats of one's own in place of some images."""

    def __call__(self, image: Image.Image) -> Any:
        if random.random() < 0.5:
            return image
        return np.asarray(image).astype(np.float32) / 100


class Noise:
    """On tensors."""

    def __call__(self, image: Tensor) -> Tensor:
        return image + torch.randn(image.shape)


class Swap(TakesAll):
    def __call__(self, images: list[Any]) -> list[Any]:
        return images[::-1]


class OtherBlur(ImgPilGaussianBlur):
    """Does more than the class that it inherits from."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return super().__call__(ImageOps.invert(image))


class OtherFlip(RandomHorizontalFlip):
    def forward(self, image: Image.Image) -> Image.Image:
        return ImageOps.flip(image) if torch.rand(1) < self.p else image


def own(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": f"{HERE}:{name}", **arguments}


NORMALIZE = {"name": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
TENSOR: Entries = [{"name": "ToTensor"}, NORMALIZE]
CROP = {"name": "RandomResizedCrop", "size": 32}
FLIP = {"name": "RandomHorizontalFlip", "p": 0.5}
COLOUR = {"name": "ImgPilColorDistortion", "strength": 1.0}
BLUR = {"name": "ImgPilGaussianBlur", "p": 0.5, "radius_min": 0.1, "radius_max": 2.0}
TWO = {"name": "ImgReplicatePil", "num_times": 2}
JITTER = {"name": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1}
MASK = {"name": "MaskedImageModeling", "patch_size": 4}
PATCHES = {"name": "ImgPatchesFromTensor", "num_patches": 4, "patch_jitter": 5}
MULTI_CROP = {
    "name": "ImgPilToMultiCrop",
    "total_num_crops": 4,
    "size_crops": [32, 16],
    "num_crops": [2, 2],
    "crop_scales": [[0.14, 1.0], [0.05, 0.14]],
}


def per_crop(*transforms: dict[str, Any], prob: list[float]) -> dict[str, Any]:
    return {"name": "ImgPilMultiCropRandomApply", "transforms": list(transforms), "prob": prob}


LISTS: dict[str, Entries] = {
    "simclr": [TWO, CROP, FLIP, COLOUR, BLUR, *TENSOR],
    "swav": [MULTI_CROP, FLIP, COLOUR, BLUR, *TENSOR],
    "vicregl": [TWO, {"name": "RandomResizedCropWithBox", "size": 32}, COLOUR, BLUR, *TENSOR],
    "dino": [
        MULTI_CROP,
        FLIP,
        per_crop({"name": "RandomApply", "p": 0.8, "transforms": [JITTER]}, prob=[1, 1, 1, 1]),
        {"name": "RandomGrayscale", "p": 0.2},
        per_crop({**BLUR, "p": 1.0}, prob=[1.0, 0.1, 0.5, 0.5]),
        per_crop({"name": "ImgPilRandomSolarize", "p": 1.0}, prob=[0.0, 0.2, 0.0, 0.0]),
        *TENSOR,
    ],
    "moco": [
        TWO,
        {**CROP, "scale": [0.2, 1.0], "interpolation": 3},
        {"name": "RandomApply", "p": 0.8, "transforms": [JITTER]},
        {"name": "RandomGrayscale", "p": 0.2},
        BLUR,
        FLIP,
        *TENSOR,
    ],
    "byol": [
        TWO,
        CROP,
        FLIP,
        {"name": "ImgPilRandomColorJitter", "strength": 0.5},
        {**BLUR, "p": 1.0, "indices": [0]},
        {**BLUR, "p": 0.1, "indices": [1]},
        {"name": "RandomSolarize", "threshold": 127.5, "p": 0.4, "indices": [1]},
        *TENSOR,
    ],
    "pirl": [
        {"name": "ImgPilToPatchesAndImage", "crop_size_image": 32, "crop_size_patches": 90},
        {"name": "ImgPilRandomPhotometric", "p": 0.66},
        COLOUR,
        *TENSOR,
    ],
    "jigsaw": [
        {"name": "Resize", "size": 50},
        {"name": "RandomCrop", "size": 48},
        *TENSOR,
        PATCHES,
        {"name": "ShuffleImgPatches", "num_perms": 4, "num_patches": 4},
        {"name": "OneHotEncode", "num_classes": 4},
    ],
    "noise": [
        TWO,
        CROP,
        JITTER,
        {"name": "GaussianNoise", "std": [0.01, 0.1], "p": 0.8},
        {"name": "ChannelDrop", "p": 0.3},
        BLUR,
        *TENSOR,
    ],
    "rotation": [CROP, FLIP, {"name": "ImgRotatePil", "num_angles": 4}, *TENSOR],
    "many angles": [CROP, {"name": "ImgRotatePil", "num_angles": 8}, COLOUR, *TENSOR],
    "ibot": [
        MULTI_CROP,
        FLIP,
        COLOUR,
        {"name": "ToTensor"},
        MASK,
        NORMALIZE,
    ],
    "tables": [
        CROP,
        {"name": "RandomPosterize", "bits": 3, "p": 0.5},
        {"name": "RandomAutocontrast", "p": 0.5},
        {"name": "RandomEqualize", "p": 0.5},
        COLOUR,
        {"name": "RandomInvert", "p": 0.5},
        {"name": "RandomAdjustSharpness", "sharpness_factor": 1.7, "p": 0.5},
        *TENSOR,
    ],
    "supervised": [CROP, FLIP, {"name": "RandAugment"}, {"name": "ImgToTensor"}, NORMALIZE],
    "evaluation": [{"name": "Resize", "size": 40}, {"name": "CenterCrop", "size": 32}, *TENSOR],
    "larger than the image": [
        {"name": "Resize", "size": [20, 25]},
        {"name": "CenterCrop", "size": [31, 22]},
        {"name": "RandomCrop", "size": 30, "padding": 5},
        {"name": "Compose", "transforms": [{"name": "CenterCrop", "size": 40}, FLIP]},
        *TENSOR,
    ],
    "a user's in the middle": [
        TWO,
        CROP,
        own("Posterize"),
        FLIP,
        COLOUR,
        own("Posterize"),
        *TENSOR,
    ],
    "drawn into": [own("Scribble"), TWO, own("Scribble"), COLOUR, own("Scribble"), CROP, *TENSOR],
    "before the views": [CROP, COLOUR, TWO, own("Scribble"), BLUR, {"name": "ToTensor"}],
    "keys and all": [TWO, CROP, own("Masked"), own("Swap"), COLOUR, *TENSOR],
    "subclasses": [CROP, own("OtherBlur", p=0.6), own("OtherFlip"), *TENSOR],
    "within others": [
        CROP,
        {"name": "RandomApply", "p": 0.6, "transforms": [own("Posterize"), COLOUR]},
        per_crop(own("Posterize"), COLOUR, prob=[0.5]),
        {"name": "Compose", "transforms": [FLIP, {"name": "Grayscale", "num_output_channels": 3}]},
        *TENSOR,
    ],
    "a tensor in the middle": [
        CROP,
        {"name": "ToTensor"},
        own("Noise"),
        {"name": "ToPILImage"},
        FLIP,
        COLOUR,
        *TENSOR,
    ],
    "normalized by indices": [
        TWO,
        CROP,
        {"name": "ToTensor"},
        {**NORMALIZE, "indices": [0]},
        {**NORMALIZE, "std": [0.5], "mean": [0.5], "indices": [1]},
    ],
    "after normalize": [CROP, *TENSOR, {"name": "RandomErasing", "p": 0.7}],
    "twice normalized": [CROP, *TENSOR, {**NORMALIZE, "mean": [0.1], "std": [0.7]}],
    "raw values": [CROP, {"name": "ImgPilToRawTensor"}, NORMALIZE],
    "grey": [CROP, {"name": "Grayscale"}, FLIP, {"name": "ToTensor"}],
    "floats of one's own": [CROP, COLOUR, own("SometimesArray"), *TENSOR, MASK],
    "patches of one's own": [CROP, own("SometimesArray"), *TENSOR, PATCHES, MASK],
    "nothing is random": [{"name": "Resize", "size": [32, 32]}, {"name": "ImgToTensor"}],
    "images": [CROP, COLOUR],
    "empty": [],
}
