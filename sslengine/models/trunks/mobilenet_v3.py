"""MobileNet v3, torchvision's or timm's, with VISSL's features.

trunk           the last map, N x 960 x H x W
trunk_pool      averaged over space, N x 960: the final feature
trunk_pool_norm the same, of length 1

timm's has two more; with TRUNK_ONLY: false, flatten is the final feature:

flatten         trunk_pool behind timm's last convolution (if it is there) and hard swish
flatten_norm    the same, of length 1
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from functools import partial
from typing import Any

from timm.models.mobilenetv3 import mobilenetv3_large_100
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, hardswish, normalize
from torchvision.models.mobilenetv3 import mobilenet_v3_large

from sslengine.errors import ConfigError
from sslengine.models.trunks.inputs import by_fan_out, with_inputs
from sslengine.models.trunks.options import MobileNetOptions
from sslengine.models.trunks.steps import Step, StepTrunk
from sslengine.registry import register_trunk


class MobileNetV3(StepTrunk):
    feature_names: tuple[str, ...] = ("trunk", "trunk_pool_norm", "trunk_pool")

    @abstractmethod
    def _steps(self) -> list[Step]:
        """The last one ends with `trunk`."""

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        trunk = self.run_steps(self._steps(), x, ("trunk",))["trunk"]
        pooled = adaptive_avg_pool2d(trunk, 1).flatten(1)
        return {"trunk": trunk, "trunk_pool": pooled, "trunk_pool_norm": normalize(pooled)}


@register_trunk("mobilenetv3_tv", options=MobileNetOptions)
class TorchvisionMobileNetV3(MobileNetV3):
    block_names = r"layers\.\d+"
    vissl_names = ((r"^layers\.", "model.features."),)

    def __init__(self, options: MobileNetOptions, in_chans: int = 3) -> None:
        super().__init__()
        if not options.TRUNK_ONLY:
            raise ConfigError(
                "config.MODEL.TRUNK.MOBILE_NET.TRUNK_ONLY: mobilenetv3_tv ends with the trunk; "
                "what follows in torchvision's is the head mobilenet_v3_head."
            )
        norm = partial(nn.BatchNorm2d, eps=1e-5, momentum=0.1) if options.TIMM_BN else None
        # torchvision's name for them is that of a trunk's verb.
        self.layers = mobilenet_v3_large(norm_layer=norm).features
        first: Any = self.layers[0]
        first[0] = with_inputs(first[0], in_chans, by_fan_out)

    def _steps(self) -> list[Step]:
        # As calls: a layer is not to be taken apart, for it works in place inside.
        *first, last = (layer.__call__ for layer in self.layers)
        return [*(("", layer) for layer in first), ("trunk", last)]


@register_trunk("mobilenetv3_timm", options=MobileNetOptions)
class TimmMobileNetV3(MobileNetV3):
    block_names = r"blocks\.\d+\.\d+"
    vissl_names = ((r"^", "model."),)

    def __init__(self, options: MobileNetOptions, in_chans: int = 3) -> None:
        super().__init__()
        whole = mobilenetv3_large_100(in_chans=in_chans)
        self.conv_stem, self.bn1, self.blocks = whole.conv_stem, whole.bn1, whole.blocks
        self.conv_head = nn.Identity() if options.TRUNK_ONLY else whole.conv_head
        pooled, flat = ("trunk_pool_norm", "trunk_pool"), ("flatten_norm", "flatten")
        last = (*flat, *pooled) if options.TRUNK_ONLY else (*pooled, *flat)
        self.feature_names = ("trunk", *last)

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        found = super().features(x, wanted)
        flat = hardswish(self.conv_head(found["trunk_pool"][:, :, None, None])).flatten(1)
        return {**found, "flatten": flat, "flatten_norm": normalize(flat)}

    def _steps(self) -> list[Step]:
        *first, last = self.blocks
        return [("", self._stem), *(("", stage) for stage in first), ("trunk", last)]

    def _stem(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn1(self.conv_stem(x))
        return out
