"""Have images the bands that a run's trunk takes?

One check for every way to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.data.pixel_format import MODE_CHANNELS, channels_after
from sslengine.engine.channels import input_channels
from sslengine.errors import ConfigError, readable
from sslengine.trust import closed


@dataclass(frozen=True)
class Bands:
    count: int | None  # that the trunk takes; None: any
    entries: Sequence[Mapping[str, Any]]  # TRANSFORMS, which may change their number
    read_so: SplitOptions

    def expect(self, image: Any, name: str) -> None:
        """image: as the transforms get it."""
        found = bands_of(image)
        if not (self.count is None or self._fit(found)):
            raise ConfigError(
                f"{readable(name)} has {found} band{'s' if found > 1 else ''} with "
                f"config.DATA.TRAIN.IMAGE_MODE={self.read_so.IMAGE_MODE}; the run takes "
                f"{self.count} (config.MODEL.INPUT_CHANNELS)."
            )

    def _fit(self, found: int) -> bool:
        """Also behind a transform of the user's own, which may make any number of them."""
        with suppress(ConfigError):  # a Normalize of another number
            return channels_after(self.entries, found, "TRANSFORMS") in (None, self.count)
        return False


# What the number of channels depends on, unless IMAGE_MODE is stored.
_DECIDE = (
    "config.MODEL.INPUT_CHANNELS", "config.DATA.TRAIN.IMAGE_MODE", "config.DATA.TRAIN.TRANSFORMS",
)  # fmt: skip


def of_run(run: Path, trusted: bool, overrides: Sequence[str]) -> list[str]:
    """The key that keeps the channels of a run's trunk, for images of any kind.

    Empty where the overrides do not change the channels, for a config that opens only with
    other values, and where IMAGE_MODE is stored: the launch has written the number of channels into
    that config.
    """
    if not any(map(_may_decide, overrides)):
        return []
    with suppress(ConfigError):
        opened = open_run(run, trusted=trusted, judged=True)
        if read(opened.config, DataOptions).TRAIN.IMAGE_MODE in MODE_CHANNELS:
            with closed(opened.opened):
                return [f"config.MODEL.INPUT_CHANNELS={input_channels(opened.config)}"]
    return []


def _may_decide(override: str) -> bool:
    key = f"{override.partition('=')[0]}."
    known = (f"{each}." for each in _DECIDE)
    return not key.startswith("config.") or any(
        key.startswith(each) or each.startswith(key) for each in known
    )


def bands_of(image: Any) -> int:
    if isinstance(image, Image.Image):
        return len(image.getbands())
    shape = np.shape(image)
    return int(shape[2]) if len(shape) > 2 else 1
