"""How many channels images have after each of the TRANSFORMS, and which of these need colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sslengine.errors import ConfigError
from sslengine.registry import TRANSFORMS

# Transforms of colours: of three channels, or of grey levels, which they leave alone.
OF_COLOURS = frozenset({
    "ColorJitter", "Grayscale", "RandomGrayscale", "ImgPilColorDistortion",
    "ImgPilRandomColorJitter", "ImgPilRandomPhotometric", "RandAugment", "VisslAutoAugment",
    "AutoAugment", "TrivialAugmentWide", "AugMix", "ImgPil2LabTensor", "lighting",
    "imagenet_augment", "imagenet_no_augment",
})  # fmt: skip
# Where the classes are defined of which all this is known.
KNOWN = ("sslengine.", "torchvision.", "classy_vision.")
# Those that make three channels of any.
TO_RGB = frozenset({"MNISTImgPil2RGB", "ImgPil2LabTensor"})


def channels_after(
    entries: Sequence[Any], channels: int | None, where: str, first: int = 0
) -> int | None:
    """entries: a TRANSFORMS list. None: after a custom transform, which may do anything.
    first: of them to look at; those before it take any number of channels, and leave it.

    Raises ConfigError at a transform that does not take what it gets.
    """
    for number, entry in enumerate(entries):
        if number >= first and isinstance(entry, Mapping) and "name" in entry:
            channels = _after(entry, channels, f"{where}.{number}")
    return channels


def _after(entry: Mapping[str, Any], channels: int | None, where: str) -> int | None:
    name = entry["name"]
    if not TRANSFORMS.get(name, where).__module__.startswith(KNOWN):
        return None
    if channels is not None:
        _check(entry, channels, where)
    for key, inner in entry.items():
        if isinstance(inner, list) and any(isinstance(each, Mapping) for each in inner):
            channels = channels_after(inner, channels, f"{where}.{key}")
    if entry.get("indices"):
        return channels  # some images of a sample alone
    if name == "Grayscale":
        return int(entry.get("num_output_channels", 1))
    return 3 if name in TO_RGB else channels


def _check(entry: Mapping[str, Any], channels: int, where: str) -> None:
    if entry["name"] in OF_COLOURS and channels not in (1, 3):
        raise ConfigError(
            f"{where} ({entry['name']}): it changes colours, which takes images of three channels "
            f"(or one), and they have {channels}. Leave it out."
        )
    for key in ("mean", "std") if entry["name"] == "Normalize" else ():
        given = entry.get(key)
        if isinstance(given, (list, tuple)) and len(given) not in (1, channels):
            raise ConfigError(
                f"{where}.{key} (Normalize): {len(given)} numbers, and images have {channels} "
                f"channel{'s' if channels > 1 else ''} there: give one for each."
            )
