"""Replace `auto` in a config by what models and data say, before any process is started.

Heads get the widths of the features that they take; heads and cutmixup_collator the number of
TRAIN's classes; INPUT_CHANNELS the channels of the first images.
"""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from sslengine.config.facts import AUTO, auto_places, class_places
from sslengine.config.resolve import Resolved, settled
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.models.options import ModelOptions
from sslengine.trust import closed

_OF_MODE = {"RGB": 3, "L": 1}


def settle_widths(resolved: Resolved) -> Resolved:
    """Return the run with a number for each `auto` of heads and collators."""
    resolved = _settle_classes(resolved)
    model = resolved.config.MODEL
    if next(auto_places(OmegaConf.to_container(model.HEAD.PARAMS)), None) is None:
        return resolved
    from sslengine.models.build import known_heads

    with closed(resolved.opened):
        params = known_heads(read(resolved.config, ModelOptions))
    return settled(resolved, "MODEL.HEAD.PARAMS", params, "auto: the widths of the features")


def _settle_classes(resolved: Resolved) -> Resolved:
    params: Any = OmegaConf.to_container(resolved.config.MODEL.HEAD.PARAMS)
    dims = list(class_places(params))
    mixed = resolved.config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.get("num_classes") == AUTO
    if not dims and not mixed:
        return resolved
    from sslengine.data.sources.labels import count_train_classes

    with closed(resolved.opened):
        count = count_train_classes(read(resolved.config, DataOptions).TRAIN)
    for each in dims:
        each[-1] = count
    why = "auto: the classes of DATA.TRAIN"
    if dims:
        resolved = settled(resolved, "MODEL.HEAD.PARAMS", params, why)
    if mixed:
        path = "DATA.TRAIN.COLLATE_FUNCTION_PARAMS.num_classes"
        resolved = settled(resolved, path, count, why)
    return resolved


def settle_channels(resolved: Resolved, prints: bool = True) -> Resolved:
    """Return the run, with INPUT_CHANNELS set to the channels of its images if they are not RGB.

    Raise the errors that every rank would raise. prints: False in all but one of several processes
    that call this.
    """
    data = resolved.config.DATA
    usual = all(data[split].IMAGE_MODE in _OF_MODE for split in ("TRAIN", "TEST"))
    if usual and not prints:
        return resolved
    from sslengine.engine.build import look_at_data

    found = look_at_data(resolved.config)
    for split, pixels in found.formats.items() if prints else ():
        print(f"config.DATA.{split}: {pixels} in the first images", flush=True)  # noqa: T201
    auto = resolved.config.MODEL.INPUT_CHANNELS == AUTO
    if not auto or found.channels == 0 or (usual and found.channels == _OF_MODE["RGB"]):
        return resolved
    return settled(
        resolved, "MODEL.INPUT_CHANNELS", found.channels, "the channels of the images of DATA"
    )
