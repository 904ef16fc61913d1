"""What pixels the images of a split have, and how many channels leave its TRANSFORMS: read from the
first images, before the launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sslengine.data.augment.image import is_array
from sslengine.data.augment.pipeline import KNOWN, Pipeline, all_known
from sslengine.data.augment.transform import Sample, TakesLabels
from sslengine.data.options import SplitOptions
from sslengine.data.seeding import seed_sample, streams_kept
from sslengine.data.sources.base import DataSource, EncodedSource, build_sources
from sslengine.errors import ConfigError, DataError, SSLEngineError
from sslengine.registry import DATA_SOURCES, TRANSFORMS

# Images of a source, evenly apart, the first among them.
LOOKED_AT = 8
MODE_CHANNELS = {"RGB": 3, "L": 1}
TRIES = 16  # of transforms that not every array may pass, with what they draw
BLANK = (512, 512)  # in place of an image that is not read


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


def tells_something(options: SplitOptions) -> bool:
    """Tell whether there is something to learn from the images. Not from RGB ones that the user's
    own source makes: it may take long to build, and the ranks build it anyway."""
    sources = [DATA_SOURCES.get(name) for name in options.DATA_SOURCES]
    return options.IMAGE_MODE not in MODE_CHANNELS or any(
        str(getattr(each, "__module__", "")).startswith(KNOWN)
        or (isinstance(each, type) and issubclass(each, EncodedSource))
        for each in sources
    )


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
    """Count the channels of images that leave the TRANSFORMS. seen: None: a blank one is passed."""
    where, mode = f"config.DATA.{split}.TRANSFORMS", options.IMAGE_MODE
    if seen is not None:
        image = seen.image if mode == "stored" else seen.image.convert(mode)
        made = count_channels(options.TRANSFORMS, image, options.limits, where)
        return made or seen.format.channels
    if mode not in MODE_CHANNELS:
        raise DataError(
            f"config.DATA.{split}: none of the first images can be read, so the number of channels "
            f"is unknown. Set config.MODEL.INPUT_CHANNELS, or replace the images."
        )
    made = None
    if all_known(options.TRANSFORMS, where):  # to make others may take long
        with suppress(ConfigError):  # images of the run may be larger
            made = count_channels(options.TRANSFORMS, Image.new(mode, BLANK), None, where)
    return made or MODE_CHANNELS[mode]


def count_channels(
    entries: Sequence[Any], image: Any, limits: tuple[float, float] | None, where: str
) -> int | None:
    """Count the channels that a TRANSFORMS list makes of an image. None: it makes no image, or has
    transforms of the user's own, one of which may need the sample of a real run."""
    quick = [each for each in entries if not _is_slow(each, where)]
    pipeline = Pipeline(quick, where, limits=limits)
    pipeline.steps = [step for step in pipeline.steps if not issubclass(step.kind, TakesLabels)]
    made: Any = None
    with streams_kept():
        for number in range(TRIES if is_array(image) else 1):
            seed_sample(0, (0, number))
            given = image.copy() if is_array(image) else image
            sample: Sample = {"data": [given], "data_valid": [1], "data_idx": [0], "label": [0]}
            try:
                made = pipeline(sample)["data"][0]
            except DataError as error:
                if all_known(entries, where):
                    raise ConfigError(str(error)) from error
                return None
    return made.shape[-3] if isinstance(made, Tensor) and made.ndim >= 3 else None


def _is_slow(entry: Mapping[str, Any], where: str) -> bool:
    """None of these changes the channels."""
    return getattr(TRANSFORMS.get(TRANSFORMS.name_in(entry, where)), "takes_long_to_make", False)


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
