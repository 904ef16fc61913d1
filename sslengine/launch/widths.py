"""Compute the heads' widths that are `auto` in the config, before any process is started."""

from __future__ import annotations

from omegaconf import OmegaConf

from sslengine.config.auto_widths import auto_places
from sslengine.config.resolve import Resolved, settled
from sslengine.registry import import_dotted
from sslengine.trust import closed


def settle_widths(resolved: Resolved) -> Resolved:
    """Return the run with a number for each `auto` in HEAD.PARAMS."""
    model = resolved.config.MODEL
    if next(auto_places(OmegaConf.to_container(model.HEAD.PARAMS)), None) is None:
        return resolved
    # A late import, so that `--show` without `auto` does not import torch.
    widths_of = import_dotted("sslengine.task.build:known_heads_of")
    with closed(resolved.opened):
        params = widths_of(resolved.config)
    return settled(resolved, "MODEL.HEAD.PARAMS", params, "auto: the widths of the features")
