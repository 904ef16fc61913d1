"""What pixels the images of a split have: read from the first of them, before the launch.

And how many channels images have after each of the TRANSFORMS, and which of these need colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.augment.image import is_array
from sslengine.data.augment.pipeline import KNOWN, Pipeline, count_on_arrays, is_known
from sslengine.data.augment.transform import Sample, TakesLabels
from sslengine.data.decode.decoding import NarrowedError
from sslengine.data.options import SplitOptions
from sslengine.data.seeding import seed_sample, streams_kept
from sslengine.data.sources.base import DataSource, EncodedSource, build_sources
from sslengine.errors import ConfigError, DataError, SSLEngineError
from sslengine.registry import DATA_SOURCES

# Images of a source, evenly apart, the first among them.
LOOKED_AT = 8
MODE_CHANNELS = {"RGB": 3, "L": 1}
# Transforms of colours: of three channels, or of grey levels, which they leave alone.
COLOUR_TRANSFORMS = frozenset({
    "ColorJitter", "Grayscale", "RandomGrayscale", "ImgPilColorDistortion",
    "ImgPilRandomColorJitter", "ImgPilRandomPhotometric", "RandAugment", "VisslAutoAugment",
    "AutoAugment", "TrivialAugmentWide", "AugMix", "ImgPil2LabTensor", "lighting",
    "imagenet_augment", "imagenet_no_augment",
})  # fmt: skip
# Those that make three channels of any.
TO_RGB = frozenset({"MNISTImgPil2RGB", "ImgPil2LabTensor"})


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
    known = MODE_CHANNELS.get(options.IMAGE_MODE)
    if known is None:
        return True
    where = f"config.DATA.{split}"
    for number, name in enumerate(options.DATA_SOURCES):
        source = DATA_SOURCES.get(name, f"{where}.DATA_SOURCES.{number}")
        encoded = isinstance(source, type) and issubclass(source, EncodedSource)
        if encoded or str(getattr(source, "__module__", "")).startswith(KNOWN):
            return True
    return channels_after(options.TRANSFORMS, known, f"{where}.TRANSFORMS") is None


def probe(options: SplitOptions, split: str) -> Seen | None:
    """Return the first image and the format of all; None if none of those looked at can be read.

    Raises if values of one would have to be narrowed, if images differ in their channels, or if
    some alone have 8 bits.
    """
    seen: list[Seen] = []
    narrowed: list[tuple[str, NarrowedError]] = []
    for source in build_sources(replace(options, COPY_TO_LOCAL_DISK=False), split):
        for row in _rows(source):
            try:
                seen.append(_seen(source, row))
            except NarrowedError as error:
                narrowed.append((source.path(row), error))
            except SSLEngineError as error:
                raise type(error)(f"{source.where}: {source.path(row)}: {error}") from error
            except Exception:
                continue
    if narrowed:
        path, first = narrowed[0]
        low, high = min(each.low for _, each in narrowed), max(each.high for _, each in narrowed)
        images = f"{len(narrowed)} image{'s' if len(narrowed) > 1 else ''}"
        raise ConfigError(f"{path}: of {images} like it, {first.told(low, high)}")
    if not seen:
        return None
    for each in seen:
        for what, ours, theirs in (
            ("channels", each.format.channels, seen[0].format.channels),
            ("values", each.format.is_divided, seen[0].format.is_divided),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"config.DATA.{split}: images differ in their {what}. {seen[0].path} has "
                    f"{seen[0].format}; {each.path} has {each.format}."
                )
    formats = [each.format for each in seen]
    low, high = min(each.low for each in formats), max(each.high for each in formats)
    return replace(seen[0], format=replace(formats[0], low=low, high=high))


def output_channels(options: SplitOptions, split: str, seen: Seen | None) -> int:
    """Count the channels of images that leave the TRANSFORMS.

    Raises ConfigError where one of them cannot take the channels that it gets.
    """
    where = f"config.DATA.{split}.TRANSFORMS"
    known = MODE_CHANNELS.get(options.IMAGE_MODE)
    if known is not None:
        told = channels_after(options.TRANSFORMS, known, where)
        if told is not None or seen is None:
            return told or known
    if seen is None:
        raise DataError(
            f"config.DATA.{split}: none of the first images can be read, so the number of channels "
            f"is unknown. Set config.MODEL.INPUT_CHANNELS, or replace the images."
        )
    first = 0
    if is_array(seen.image):
        first = count_on_arrays(options.TRANSFORMS, seen.image, options.limits, where)
    told = channels_after(options.TRANSFORMS, seen.format.channels, where, first)
    try:
        made = _made(options, split, seen)
    except DataError:
        if told is not None:
            raise
        made = None  # a transform of the user's own may need the sample of a real run
    return made or told or seen.format.channels


def channels_after(
    entries: Sequence[Any], channels: int | None, where: str, first: int = 0
) -> int | None:
    """Return how many leave a TRANSFORMS list; None: after a custom one, which may do anything.

    first: of them to look at; those before it take any number of channels, and leave it.
    Raises ConfigError at a transform that does not take what it gets.
    """
    for number, entry in enumerate(entries):
        if number >= first and isinstance(entry, Mapping) and "name" in entry:
            channels = _pass(entry, channels, f"{where}.{number}")
    return channels


def _pass(entry: Mapping[str, Any], channels: int | None, where: str) -> int | None:
    name = entry["name"]
    if not is_known(name, where):
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
    if entry["name"] in COLOUR_TRANSFORMS and channels not in (1, 3):
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


def _made(options: SplitOptions, split: str, seen: Seen) -> int | None:
    """Count the channels that the TRANSFORMS make of the image; None if that is no image."""
    image = seen.image
    if isinstance(image, Image.Image) and options.IMAGE_MODE != "stored":
        image = image.convert(options.IMAGE_MODE)
    sample: Sample = {"data": [image], "data_valid": [1], "data_idx": [0], "label": [0]}
    with streams_kept():
        seed_sample(0, (0, 0))
        where = f"config.DATA.{split}.TRANSFORMS"
        pipeline = Pipeline(options.TRANSFORMS, where, limits=options.limits)
        pipeline.steps = [step for step in pipeline.steps if not issubclass(step.kind, TakesLabels)]
        pipeline(sample)
    shape: tuple[int, ...] = getattr(sample["data"][0], "shape", ())
    return int(shape[-3]) if len(shape) >= 3 else None
