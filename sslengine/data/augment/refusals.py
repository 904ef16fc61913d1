"""Which transforms cannot take images that are arrays: found before the launch.

Each entry is tried a number of times on a small array, with what it draws. Entries behind the first
that makes tensors, or that is the user's own, are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sslengine.data.augment.counterparts import OnPil, adapt
from sslengine.data.augment.image import NO_LIMITS, Limits, Pixels
from sslengine.data.augment.pipeline import build_transform, is_known
from sslengine.data.augment.transform import TakesLabels, kind_of
from sslengine.data.seeding import seed_sample, streams_kept
from sslengine.errors import ConfigError
from sslengine.registry import TRANSFORMS

TRIES, SIDE = 64, 64
# Take arrays by themselves, and return something else.
CONVERT = frozenset({"ToTensor", "ImgToTensor", "ImgPilToRawTensor", "ToPILImage", "Lambda"})
INSTEAD = {
    "ImgPilResizeLargerSide": "write Resize",
    "RandomVerticalFlip": "put it behind ToTensor",
}


def count_on_arrays(
    entries: Sequence[Any], image: Pixels, limits: tuple[float, float] | None, where: str
) -> int:
    """Count the entries at the head of a TRANSFORMS list that get arrays like this one.

    Raises ConfigError at one that does not take them.
    """
    small = np.zeros((SIDE, SIDE, *image.shape[2:]), image.dtype)
    for number, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or "name" not in entry:
            continue
        here = f"{where}.{number}"
        if entry["name"] in CONVERT or not is_known(TRANSFORMS.name_in(entry, here), here):
            return number
        _check(entry, small, limits, here)
    return len(entries)


def _check(
    entry: Mapping[str, Any], small: Pixels, limits: tuple[float, float] | None, where: str
) -> None:
    inner = [(key, value) for key, value in entry.items() if _are_entries(value)]
    for key, value in inner:
        count_on_arrays(value, small, limits, f"{where}.{key}")
    transform = build_transform(entry, where)
    if issubclass(kind_of(transform), TakesLabels):
        return
    taking = adapt(transform, Limits(*limits) if limits else NO_LIMITS)
    if isinstance(taking, OnPil):
        raise ConfigError(_refused(entry, where, _not_known(entry)))
    if inner:
        return
    with streams_kept():
        for number in range(TRIES):
            seed_sample(0, (0, number))
            try:
                taking(small)
            except TypeError as error:
                raise ConfigError(_refused(entry, where, str(error))) from error
            except ValueError:
                break  # the images of the run may be larger


def _are_entries(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, Mapping) for each in value)


def _refused(entry: Mapping[str, Any], where: str, why: str) -> str:
    return (
        f"{where} ({entry['name']}): images are arrays of any number of channels (IMAGE_MODE: "
        f"stored). {why}"
    )


def _not_known(entry: Mapping[str, Any]) -> str:
    if entry["name"] in INSTEAD:
        return f"It takes PIL images: {INSTEAD[entry['name']]}."
    return (
        "With these arguments it takes PIL images, or tensors, behind ToTensor: put it there, "
        "remove it, or set IMAGE_MODE: RGB."
    )
