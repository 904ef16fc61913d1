"""Compute the numbers that are `auto` in the config, before any process is started.

Of heads, the widths of the features that they get; of heads and cutmixup_collator, the number of
TRAIN's classes.
"""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from sslengine.config.auto_widths import AUTO, auto_places, class_places
from sslengine.config.resolve import Resolved, settled
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.registry import import_dotted
from sslengine.trust import closed


def settle_widths(resolved: Resolved) -> Resolved:
    """Return the run with a number for each `auto`."""
    resolved = _settle_classes(resolved)
    model = resolved.config.MODEL
    if next(auto_places(OmegaConf.to_container(model.HEAD.PARAMS)), None) is None:
        return resolved
    widths_of = import_dotted("sslengine.task.build:known_heads_of")
    with closed(resolved.opened):
        params = widths_of(resolved.config)
    return settled(resolved, "MODEL.HEAD.PARAMS", params, "auto: the widths of the features")


def _settle_classes(resolved: Resolved) -> Resolved:
    params: Any = OmegaConf.to_container(resolved.config.MODEL.HEAD.PARAMS)
    dims = list(class_places(params))
    mixed = resolved.config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.get("num_classes") == AUTO
    if not dims and not mixed:
        return resolved
    with closed(resolved.opened):
        count = import_dotted("sslengine.data.manifest.labels:count_classes")(
            read(resolved.config, DataOptions).TRAIN
        )
    for each in dims:
        each[-1] = count
    why = "auto: the classes of DATA.TRAIN"
    if dims:
        resolved = settled(resolved, "MODEL.HEAD.PARAMS", params, why)
    if mixed:
        path = "DATA.TRAIN.COLLATE_FUNCTION_PARAMS.num_classes"
        resolved = settled(resolved, path, count, why)
    return resolved
