"""How many channels the trunk gets: what the config says, held against what the data has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from omegaconf import DictConfig

from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.decode.pixel_format import (
    OF_MODE,
    PixelFormat,
    output_channels,
    probe,
    tells_something,
)
from sslengine.data.options import DataOptions
from sslengine.errors import ConfigError
from sslengine.models.options import ModelOptions


@dataclass(frozen=True)
class Input:
    channels: int
    # Of the files, split by split, where they are not the usual ones.
    formats: dict[str, PixelFormat]


def look_at_data(config: DictConfig, tests: bool = False) -> Input | None:
    """Before the launch: are the images what the config takes them for? None: there are none.

    tests: the test set is read too, also with TEST_MODEL: false.
    """
    data, run = read(config, DataOptions), read(config, RunOptions)
    given = read(config, ModelOptions).INPUT_CHANNELS
    splits = [] if run.TEST_ONLY else ["TRAIN"]
    splits += ["TEST"] if run.TEST_MODEL or run.TEST_ONLY or tests else []
    found: dict[str, int] = {}
    formats: dict[str, PixelFormat] = {}
    for split in splits:
        options = getattr(data, split)
        if not options.DATA_SOURCES:
            continue
        stored = data.HOLD_OUT.read_as(split)
        seen = probe(options, stored) if tells_something(options, stored) else None
        if seen is not None and options.IMAGE_MODE == "stored":
            formats[split] = seen.format
        found[split] = output_channels(options, split, seen)
        if isinstance(given, int) and found[split] != given:
            raise ConfigError(
                f"config.MODEL.INPUT_CHANNELS: the trunk takes {given}, and the images of "
                f"config.DATA.{split} have {found[split]} behind its TRANSFORMS. auto takes what "
                f"they have."
            )
    if not found:
        return None
    if len(set(found.values())) > 1:
        raise ConfigError(
            f"config.DATA: images of TRAIN have {found['TRAIN']} channels behind their "
            f"TRANSFORMS, those of TEST {found['TEST']}."
        )
    return Input(next(iter(found.values())), formats)


def input_channels(config: DictConfig) -> int:
    """Where INPUT_CHANNELS is still auto, the channels that the data has."""
    given, data = read(config, ModelOptions).INPUT_CHANNELS, read(config, DataOptions)
    if isinstance(given, int):
        return given
    split = "TRAIN" if data.TRAIN.DATA_SOURCES else "TEST"
    options = getattr(data, split)
    if not options.DATA_SOURCES:
        return 3
    with torch.device("cpu"):  # the model may be built for a look at its shapes alone
        seen = None if options.IMAGE_MODE in OF_MODE else probe(options, split)
        return output_channels(options, split, seen)
