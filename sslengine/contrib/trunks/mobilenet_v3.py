"""MobileNet v3, torchvision's or timm's, with VISSL's features.

trunk           the last map, N x 960 x H x W
trunk_pool      averaged over space, N x 960: the final feature
trunk_pool_norm the same, normalised to length 1

timm's has two more; with TRUNK_ONLY: false, flatten is the final feature:

flatten         trunk_pool after timm's last convolution (with TRUNK_ONLY: false) and hard swish
flatten_norm    the same, normalised to length 1
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from timm.models.mobilenetv3 import mobilenetv3_large_100
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, hardswish, normalize
from torchvision.models.mobilenetv3 import mobilenet_v3_large

from sslengine.errors import ConfigError
from sslengine.models.trunks.library import Design, Feature, LibraryTrunk, by_fan_out, take_channels
from sslengine.models.trunks.options import MobileNetOptions
from sslengine.registry import register_trunk


def _pooled(trunk: Any, given: Sequence[Tensor], x: Tensor) -> Tensor:
    return adaptive_avg_pool2d(given[0], 1).flatten(1)


def _flat(trunk: Any, given: Sequence[Tensor], x: Tensor) -> Tensor:
    pooled = adaptive_avg_pool2d(given[0], 1)
    return hardswish(cast(Tensor, trunk.conv_head(pooled))).flatten(1)


def _add_norm(layer: str, name: str, read: Any) -> dict[str, Feature]:
    """Return the feature normalised to length 1, then the feature."""
    normed = Feature((layer,), lambda *given: normalize(read(*given)))
    return {f"{name}_norm": normed, name: Feature((layer,), read)}


@register_trunk("mobilenetv3_tv", options=MobileNetOptions)
class TorchvisionMobileNetV3(LibraryTrunk):
    section = "config.MODEL.TRUNK.MOBILE_NET"
    block_names = r"layers\.\d+"
    vissl_names = ((r"^layers\.", "model.features."),)

    def __init__(self, options: MobileNetOptions, in_chans: int = 3) -> None:
        super().__init__()
        if not options.TRUNK_ONLY:
            raise ConfigError(
                f"{self.section}.TRUNK_ONLY: it must be true for mobilenetv3_tv; the layers that "
                f"follow in torchvision's network are the head mobilenet_v3_head."
            )
        norm = partial(nn.BatchNorm2d, eps=1e-5, momentum=0.1) if options.TIMM_BN else None
        # torchvision calls its layers `features`, which is also a method of Trunk.
        self.layers = mobilenet_v3_large(norm_layer=norm).features
        first: Any = self.layers[0]
        first[0] = take_channels(first[0], in_chans, by_fan_out)
        renamed = ((r"^layers\.", "features."),)
        design = Design("mobilenet_v3_large", renamed=renamed, last="classifier")
        self.designs = {"torchvision": f"TIMM_BN {options.TIMM_BN}" if options.TIMM_BN else design}
        self.set_features(
            {"trunk": Feature(("layers",)), **_add_norm("layers", "trunk_pool", _pooled)}
        )

    def final_feature(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers(x))


@register_trunk("mobilenetv3_timm", options=MobileNetOptions)
class TimmMobileNetV3(LibraryTrunk):
    section = "config.MODEL.TRUNK.MOBILE_NET"
    block_names = r"blocks\.\d+\.\d+"
    vissl_names = ((r"^", "model."),)

    def __init__(self, options: MobileNetOptions, in_chans: int = 3) -> None:
        super().__init__()
        whole = mobilenetv3_large_100(in_chans=in_chans)
        self.conv_stem, self.bn1, self.blocks = whole.conv_stem, whole.bn1, whole.blocks
        self.conv_head = nn.Identity() if options.TRUNK_ONLY else whole.conv_head
        pooled = _add_norm("blocks", "trunk_pool", _pooled)
        flat = _add_norm("blocks", "flatten", _flat)
        last = {**flat, **pooled} if options.TRUNK_ONLY else {**pooled, **flat}
        # With TRUNK_ONLY timm's has one convolution more than this trunk.
        self.designs = {"timm": "TRUNK_ONLY true" if options.TRUNK_ONLY
                        else Design("mobilenetv3_large_100")}  # fmt: skip
        self.set_features({"trunk": Feature(("blocks",)), **last})

    def final_feature(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.blocks(self.bn1(self.conv_stem(x))))
