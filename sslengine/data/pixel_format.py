"""What pixels the images of a split have: read from the first of them, before the launch.

And how many channels images have after the TRANSFORMS, as a trial shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sslengine.data.augment.image import is_array
from sslengine.data.augment.pipeline import KNOWN, Pipeline, count_on_arrays, is_known
from sslengine.data.augment.transform import Sample, TakesLabels
from sslengine.data.options import SplitOptions
from sslengine.data.seeding import seed_sample, streams_kept
from sslengine.data.sources.base import DataSource, EncodedSource, build_sources
from sslengine.errors import ConfigError, DataError, SSLEngineError
from sslengine.registry import DATA_SOURCES, TRANSFORMS

# Images of a source, evenly apart, the first among them.
LOOKED_AT = 8
MODE_CHANNELS = {"RGB": 3, "L": 1}
# TRANSFORMS are tried so often, with what they draw; on an image of this side, if the channels of
# all are known.
TRIES, TRIED_SIDE = 8, 256


@dataclass(frozen=True)
class PixelFormat:
    channels: int
    dtype: str  # as numpy calls it
    low: float  # of the values seen
    high: float

    @property
    def is_divided(self) -> bool:
        """Tell whether ToTensor divides it by 255."""
        return self.dtype == "uint8"

    def __str__(self) -> str:
        plural = "s" if self.channels > 1 else ""
        return f"{self.channels} channel{plural} of {self.dtype}, {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Seen:
    path: str
    image: Any  # as the transforms get it
    format: PixelFormat


def tells_something(options: SplitOptions, split: str) -> bool:
    """Tell whether there is something to learn from the images. Not from RGB ones that the user's
    own source makes: it may take long to build, and the ranks build it anyway."""
    if options.IMAGE_MODE not in MODE_CHANNELS:
        return True
    for number, name in enumerate(options.DATA_SOURCES):
        source = DATA_SOURCES.get(name, f"config.DATA.{split}.DATA_SOURCES.{number}")
        encoded = isinstance(source, type) and issubclass(source, EncodedSource)
        if encoded or str(getattr(source, "__module__", "")).startswith(KNOWN):
            return True
    return False


def probe(options: SplitOptions, split: str) -> Seen | None:
    """Return the first image and the format of all; None if none of those looked at can be read.

    Raises if values of one would have to be narrowed, if images differ in their channels, or if
    some alone have 8 bits.
    """
    seen: list[Seen] = []
    for source in build_sources(replace(options, COPY_TO_LOCAL_DISK=False), split):
        for row in _rows(source):
            try:
                seen.append(_seen(source, row))
            except SSLEngineError as error:
                raise type(error)(f"{source.where}: {source.path(row)}: {error}") from error
            except Exception:
                continue
    if not seen:
        return None
    formats = [each.format for each in seen]
    kinds = [(each.channels, each.is_divided) for each in formats]
    if other := next((each for each, kind in zip(seen, kinds) if kind != kinds[0]), None):
        raise ConfigError(
            f"config.DATA.{split}: images differ. {seen[0].path} has {seen[0].format}; "
            f"{other.path} has {other.format}."
        )
    low, high = min(each.low for each in formats), max(each.high for each in formats)
    return replace(seen[0], format=replace(formats[0], low=low, high=high))


def output_channels(options: SplitOptions, split: str, seen: Seen | None) -> int:
    """Count the channels of images that leave the TRANSFORMS.

    Raises ConfigError where one of them cannot take the channels that it gets.
    """
    where, entries = f"config.DATA.{split}.TRANSFORMS", options.TRANSFORMS
    known = MODE_CHANNELS.get(options.IMAGE_MODE)
    if known is not None:
        grey = Image.new(options.IMAGE_MODE, (TRIED_SIDE, TRIED_SIDE))
        return count_channels(entries, grey, None, where) or known
    if seen is None:
        raise DataError(
            f"config.DATA.{split}: none of the first images can be read, so the number of channels "
            f"is unknown. Set config.MODEL.INPUT_CHANNELS, or replace the images."
        )
    if is_array(seen.image) or seen.format.channels not in (1, 3):
        count_on_arrays(entries, np.asarray(seen.image), options.limits, where)
    found = count_channels(entries, seen.image, options.limits, where)
    return found or seen.format.channels


def count_channels(
    entries: Sequence[Any], image: Any, limits: tuple[float, float] | None, where: str
) -> int | None:
    """Count the channels that TRANSFORMS make of an image.

    None: that does not show, as one of the user's own may need the sample of a real run, and a crop
    a larger image. Raises ConfigError at a transform that does not take what it gets.
    """
    pipeline = Pipeline(entries, where, limits=limits)
    pipeline.steps = [step for step in pipeline.steps if not issubclass(step.kind, TakesLabels)]
    made: Any = None
    with streams_kept():
        for number in range(TRIES):
            sample: Sample = {"data": [image], "data_valid": [1], "data_idx": [0], "label": [0]}
            seed_sample(0, (0, number))
            try:
                (made, *_) = pipeline(sample)["data"]
            except DataError as error:
                known = (is_known(TRANSFORMS.name_in(each, where), where) for each in entries)
                if isinstance(error.__cause__, ValueError) or not all(known):
                    return None
                raise ConfigError(str(error)) from error
    return int(made.shape[-3]) if isinstance(made, Tensor) and made.ndim >= 3 else None


def _rows(source: DataSource) -> Iterator[int]:
    count = min(len(source), LOOKED_AT if isinstance(source, EncodedSource) else 1)
    if source.is_stream:
        yield from range(count)
        return
    yield from (number * len(source) // count for number in range(count))


def _seen(source: DataSource, row: int) -> Seen:
    if not isinstance(source, EncodedSource):
        image: Any = source.image(row)
    elif source.decoder.mode == "stored":
        image = source.image(row)
    else:  # the header is enough for one of 8 bits
        image = source.decoder.opened(source.encoded(row))
        channels = MODE_CHANNELS[source.decoder.mode]
        return Seen(source.path(row), image, PixelFormat(channels, "uint8", 0, 255))
    values: NDArray[Any] = np.asarray(image)
    channels = values.shape[2] if values.ndim == 3 else 1
    low, high = float(values.min()), float(values.max())
    return Seen(source.path(row), image, PixelFormat(channels, str(values.dtype), low, high))
