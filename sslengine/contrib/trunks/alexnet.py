"""torchvision's AlexNet without its classifier. torchvision's weight files can be loaded.

conv1 pool1 conv2 pool2 conv3 conv4 conv5 pool5    after each ReLU and each pooling
flatten    averaged to 6 x 6 and flattened, N x 9216: the final feature

VISSL's five AlexNets (alexnet_bvlc, alexnet_jigsaw, ...) are other networks, for weights that
were published for Caffe; they are not supported.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models.alexnet import AlexNet as TorchvisionAlexNet

from sslengine.models.trunks.library import Design, Feature, LibraryTrunk, named, take_channels
from sslengine.registry import register_trunk

# The index of the layer whose output is the feature.
LAST_LAYERS = {
    "conv1": 1, "pool1": 2, "conv2": 4, "pool2": 5, "conv3": 7, "conv4": 9, "conv5": 11,
    "pool5": 12,
}  # fmt: skip


@register_trunk("alexnet")
class AlexNet(LibraryTrunk, TorchvisionAlexNet):  # type: ignore[misc] # Trunk's forward
    section = "config.MODEL.TRUNK"
    vissl_names = ((r"^layers\.", "features."),)
    # torchvision calls its layers `features`, which is also a method of Trunk.
    features: Any = property(lambda self: self._modules["layers"])
    find = LibraryTrunk.features
    designs: Any = {
        "torchvision": Design("alexnet", renamed=((r"^layers\.", "features."),), last="classifier")
    }

    def __init__(self, in_chans: int = 3) -> None:
        super().__init__(num_classes=1)
        layers: Any = self._modules.pop("features")
        layers[0] = take_channels(layers[0], in_chans)
        self.layers, self.classifier = layers, nn.Sequential()
        self.set_features(
            named(**{name: f"layers.{layer}" for name, layer in LAST_LAYERS.items()})
            | {"flatten": Feature(("",))}
        )

    def checkpoint_activations(self, blocks: str | None = "layers") -> None:
        super().checkpoint_activations(blocks)
