"""Classy Vision's transforms of images and of clips, under their names."""

from __future__ import annotations

import warnings

from sslengine.registry import TRANSFORMS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports torchvision's deprecated video transforms
    from classy_vision.dataset.transforms import TRANSFORM_REGISTRY

# Of its others, imagenet_autoaugment fails with numpy 2 (torchvision's AutoAugment has that
# policy), and the rest take whole samples of Classy's datasets.
NAMES = (
    "imagenet_augment",
    "imagenet_no_augment",
    "lighting",
    "video_clip_random_resize_crop",
    "video_clip_resize",
    "video_default_augment",
    "video_default_no_augment",
)

TRANSFORMS.adopt(__name__, {name: TRANSFORM_REGISTRY[name] for name in NAMES})
