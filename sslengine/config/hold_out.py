"""DATA.HOLD_OUT: TEST is a part of TRAIN's images, so it takes over TRAIN's sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.config.components import keys_of
from sslengine.errors import ConfigError
from sslengine.registry import DATA_SOURCES

# The keys that determine the images and how they are read, and their classes.
OF_IMAGES = (
    "DATA_SOURCES", "DATA_PATHS", "DATASET_NAMES", "REMOVE_IMG_PATH_PREFIX", "NEW_IMG_PATH_PREFIX",
    "IMAGE_COLUMN", "IMAGE_MODE", "PIXEL_RANGE", "TRANSPARENT", "IMAGE_PAGE",
    "EXIF_ROTATION", "DEFAULT_GRAY_IMG_SIZE",
)  # fmt: skip
OF_LABELS = (
    "LABEL_SOURCES", "LABEL_PATHS", "LABEL_COLUMN", "LABEL_COLUMNS", "LABEL_SEPARATOR",
)  # fmt: skip


def sources_from_train(config: DictConfig, path: str) -> list[str]:
    """Return the sources of a split that names none: TRAIN's, if TEST is a part of it."""
    is_part = path == "config.DATA.TEST" and config.DATA.HOLD_OUT.SHARE
    return list(config.DATA.TRAIN.DATA_SOURCES) if is_part else []


def values_of_test(data: DictConfig) -> Iterator[tuple[str, Any]]:
    """Yield (key path below `config`, TRAIN's value) for the keys that TEST does not set."""
    if not data.HOLD_OUT.SHARE:
        return
    if data.HOLD_OUT.STRATIFIED and not data.TRAIN.LABEL_SOURCES:
        raise ConfigError(
            "config.DATA.HOLD_OUT.STRATIFIED: it requires labels. Set "
            "config.DATA.TRAIN.LABEL_SOURCES, or set STRATIFIED to false."
        )
    # What is set to nothing is not set.
    make_default: Any = OmegaConf.get_type(data.TEST)
    default = make_default()
    of_sources = keys_of(DATA_SOURCES, list(data.TRAIN.DATA_SOURCES)).difference(
        OF_IMAGES, OF_LABELS
    )
    same = (*OF_IMAGES, *sorted(of_sources), *(OF_LABELS if data.HOLD_OUT.STRATIFIED else ()))
    for key in (*OF_IMAGES, *sorted(of_sources), *OF_LABELS):
        train, test = data.TRAIN[key], data.TEST[key]
        if test in ("", None, getattr(default, key, None)):
            yield f"DATA.TEST.{key}", train
        elif test != train and key in same:
            raise ConfigError(
                f"config.DATA.TEST.{key}: with config.DATA.HOLD_OUT.SHARE TEST is a part of "
                f"TRAIN's images; expected no value, or that of TRAIN ({train}), got {test}."
            )
