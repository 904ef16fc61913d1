"""`TRUNK.NAME: timm`: any network of timm, by timm's name.

<timm's names>  the modules of `feature_info` (layer1, stages.0, blocks.11), as maps N x C x H x W
lastPATCH, ...  tokens of a vision transformer, see tokens.py
flatten         timm's output with num_classes=0, pooled: the final feature

The output of any other submodule can be requested too, see library.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, cast

import timm
from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.models.trunks.library import FINAL, ByName, Design, Feature, adopt, rows_of_blocks
from sslengine.models.trunks.library_options import TimmOptions
from sslengine.models.trunks.patches import set_drop_path
from sslengine.models.trunks.rotations import make_on_device
from sslengine.models.trunks.tokens import (
    PATCHES_AT,
    add_shown,
    can_show,
    is_token_network,
    token_features,
)
from sslengine.registry import register_trunk

WHERE = "config.MODEL.TRUNK.TIMM"


class TimmTrunk(ByName):
    section = WHERE
    # The features of forward_intermediates, and their indices.
    _levels: dict[str, int]
    options: TimmOptions

    def _record(self, source: str) -> None:
        if source not in self._levels:
            super()._record(source)

    def _run(self, x: Tensor, sources: Collection[str]) -> dict[str, Tensor]:
        levels = sorted((self._levels[name], name) for name in sources if name in self._levels)
        if not levels:
            return super()._run(x, sources)
        whole = len(levels) < len(sources)
        network = cast(Any, self)
        given = network.forward_intermediates(
            x,
            indices=[number for number, _ in levels],
            intermediates_only=not whole,
            stop_early=not whole,
        )
        last, maps = given if whole else (None, given)
        found = dict(zip((name for _, name in levels), maps, strict=True))
        return {**found, "": network.forward_head(last)} if "" in sources else found

    def library_weights(self, in_chans: int) -> dict[str, Tensor]:
        """Return timm's pretrained weights; timm may download them."""
        return cast(nn.Module, _make(self.options, in_chans, pretrained=True)).state_dict()


@register_trunk("timm", options=TimmOptions)
def timm_trunk(options: TimmOptions, in_chans: int = 3) -> TimmTrunk:
    network = _make(options, in_chans)
    make_on_device(network)
    if options.drop_path_uniform:
        set_drop_path(network, options.arguments["drop_path_rate"])
    levels = _levels(network)
    table = {name: Feature((name,)) for name in levels if name != FINAL}
    tokens = token_features(network, Feature) if is_token_network(network) else {}
    trunk = adopt(network, TimmTrunk, {**table, **tokens, FINAL: Feature(("",))})
    trunk.extra_inputs = (PATCHES_AT,) if tokens else ()
    if can_show(network):
        add_shown(trunk)
    # Without forward_intermediates, the outputs of submodules are recorded.
    trunk._levels = levels if hasattr(network, "forward_intermediates") else {}
    trunk.block_names = _blocks(network)
    trunk.options, trunk.left_out = options, _classifier(network)
    design = Design(options.model.partition(".")[0], options.arguments)
    trunk.designs = {"timm": design, "torchvision": design}
    return trunk


def _make(options: TimmOptions, in_chans: int, **more: Any) -> Any:
    options.expect_valid(WHERE)
    try:
        return timm.create_model(
            options.model, num_classes=0, in_chans=in_chans, **options.arguments, **more
        )
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"{WHERE}.arguments: timm cannot make {options.model} of {options.arguments} for "
            f"images of {in_chans} channels: {error}"
        ) from error


def _levels(network: Any) -> dict[str, int]:
    levels: dict[str, int] = {}
    info = getattr(network, "feature_info", [])
    for number, each in enumerate(getattr(info, "info", info)):
        levels.setdefault(each["module"], number)
    return levels


def _blocks(network: Any) -> str | None:
    """timm groups parameters by patterns: the patterns without a fixed number match blocks."""
    if not hasattr(network, "group_matcher"):
        return rows_of_blocks(network)
    return "|".join(_patterns(network.group_matcher(coarse=False))) or None


def _patterns(groups: dict[str, Any]) -> Iterator[str]:
    for name, group in groups.items():
        for each in [group] if isinstance(group, str) else group:
            pattern, number = (each, None) if isinstance(each, str) else each
            if number is None and name != "stem":
                yield pattern


def _classifier(network: Any) -> tuple[str, ...]:
    names = getattr(network, "pretrained_cfg", {}).get("classifier") or ()
    names = (names,) if isinstance(names, str) else names
    return tuple(f"{name}." for name in names)
