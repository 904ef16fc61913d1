"""Find how many channels the trunk gets: what the config says must be what the data has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from omegaconf import DictConfig

from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.data.pixel_format import (
    MODE_CHANNELS,
    PixelFormat,
    output_channels,
    probe,
    tells_something,
)
from sslengine.errors import ConfigError
from sslengine.models.options import ModelOptions


@dataclass(frozen=True)
class FirstImages:
    channels: int  # behind the TRANSFORMS; 0: there are no images
    # Of the files, split by split, where IMAGE_MODE does not say it.
    formats: dict[str, PixelFormat]


def look_at_data(config: DictConfig) -> FirstImages:
    """Read the first images of the splits of a run; raise ConfigError if its trunk takes others."""
    data, run = read(config, DataOptions), read(config, RunOptions)
    given = read(config, ModelOptions).INPUT_CHANNELS
    found: dict[str, int] = {"the trunk": given} if isinstance(given, int) else {}
    formats: dict[str, PixelFormat] = {}
    splits = [*["TRAIN"] * (not run.TEST_ONLY), *["TEST"] * (run.TEST_MODEL or run.TEST_ONLY)]
    for split in splits:
        options = getattr(data, split)
        if not options.DATA_SOURCES:
            continue
        stored = data.HOLD_OUT.read_as(split)
        seen = probe(options, stored) if tells_something(options) else None
        if seen is not None and options.IMAGE_MODE == "stored":
            formats[split] = seen.format
        found[f"the images of config.DATA.{split}"] = output_channels(options, split, seen)
    if len(set(found.values())) > 1:
        raise ConfigError(
            "config.MODEL.INPUT_CHANNELS: "
            + ", ".join(f"{what} {count}" for what, count in found.items())
            + ". The trunk and all images, behind their TRANSFORMS, need the same number; auto "
            "takes that of the images."
        )
    return FirstImages(next(iter(found.values()), 0), formats)


def input_channels(config: DictConfig) -> int:
    """Return INPUT_CHANNELS, or the channels that the data has where it is still auto."""
    given, data = read(config, ModelOptions).INPUT_CHANNELS, read(config, DataOptions)
    if isinstance(given, int):
        return given
    split = "TRAIN" if data.TRAIN.DATA_SOURCES else "TEST"
    options = getattr(data, split)
    if not options.DATA_SOURCES:
        return 3
    with torch.device("cpu"):  # the model may be built for a look at its shapes alone
        seen = None if options.IMAGE_MODE in MODE_CHANNELS else probe(options, split)
        return output_channels(options, split, seen)
