"""RandAugment and AutoAugment as timm has them, under VISSL's names and arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from PIL import Image
from timm.data.auto_augment import auto_augment_transform, rand_augment_transform

from sslengine.data.augment.transform import expect
from sslengine.registry import register_transform

Change = Callable[[Image.Image], Image.Image]

# What comes into view where an image is moved aside; how far, in pixels, at most.
FILL = (128, 128, 128)
TRANSLATE = 250


class _TimmChange:
    change: Change

    def __call__(self, image: Image.Image) -> Image.Image:
        return self.change(image)


@register_transform("RandAugment")
class RandAugment(_TimmChange):
    """`num_layers` random changes, each made with a chance of one half."""

    def __init__(
        self,
        magnitude: int = 10,
        magnitude_std: float = 0,
        num_layers: int = 2,
        increasing_severity: bool = False,
        weight_choice: int | None = None,
    ) -> None:
        """
        magnitude: from 0 to 10.
        magnitude_std: draw the magnitude of each change around it.
        num_layers: the number of changes.
        weight_choice: null alone: all changes are equally likely.
        increasing_severity: let all changes grow with the magnitude; some shrink otherwise.
        """
        expect(weight_choice is None, "weight_choice", "null", weight_choice)
        parts = f"rand-m{magnitude}-n{num_layers}" + "-inc1" * increasing_severity
        augment = rand_augment_transform(parts, _extras(magnitude_std))
        _keep_a_bit(augment.ops)
        self.change = augment


@register_transform("VisslAutoAugment")
class VisslAutoAugment(_TimmChange):
    """A random one of the pairs of changes that a search found best for ImageNet."""

    def __init__(
        self,
        policy_name: Literal["v0", "v0r", "original", "originalr"] = "v0",
        magnitude_std: float = 0,
    ) -> None:
        """
        policy_name: original, the pairs of the paper, or v0, those of TPU EfficientNet; in
            originalr and v0r posterize becomes stronger with its magnitude, not weaker.
        magnitude_std: draw the magnitude of each change around that of the policy.
        """
        augment = auto_augment_transform(policy_name, _extras(magnitude_std))
        for pair in augment.policy:
            _keep_a_bit(pair)
        self.change = augment


def _keep_a_bit(operations: Iterable[Any]) -> None:
    """Posterize to one bit at least: of zero bits Pillow made black, and now makes an error."""
    for operation in operations:
        if operation.name.startswith("Posterize"):
            operation.level_fn = partial(_floor_bits, operation.level_fn)


def _floor_bits(bits: Callable[..., tuple[int]], *arguments: Any) -> tuple[int]:
    return (max(1, bits(*arguments)[0]),)


def _extras(magnitude_std: float) -> dict[str, object]:
    return {"translate_const": TRANSLATE, "img_mean": FILL, "magnitude_std": magnitude_std}
