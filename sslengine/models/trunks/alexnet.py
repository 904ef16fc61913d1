"""torchvision's AlexNet without its classifier. Its weights are read as they are.

conv1 pool1 conv2 pool2 conv3 conv4 conv5 pool5    behind each ReLU, behind each pooling
flatten    averaged to 6 x 6 and flattened, N x 9216: the final feature

VISSL's five AlexNets (alexnet_bvlc, alexnet_jigsaw, ...) are other networks, for weights that
were published for Caffe; they are not here.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn
from torchvision.models import AlexNet as TorchvisionAlexNet

from sslengine.models.trunks.inputs import with_inputs
from sslengine.models.trunks.steps import Step, StepTrunk
from sslengine.registry import register_trunk

# The layers of torchvision's `features` that end a feature.
ENDS = {
    "conv1": 1, "pool1": 2, "conv2": 4, "pool2": 5, "conv3": 7, "conv4": 9, "conv5": 11,
    "pool5": 12,
}  # fmt: skip


@register_trunk("alexnet")
class AlexNet(StepTrunk):
    feature_names = (*ENDS, "flatten")
    vissl_names = ((r"^layers\.", "features."),)

    def __init__(self, in_chans: int = 3) -> None:
        super().__init__()
        whole = TorchvisionAlexNet(num_classes=1)
        # torchvision's name for them is that of a trunk's verb.
        self.layers = whole.features
        self.layers[0] = with_inputs(self.layers[0], in_chans)
        for layer in self.layers:
            if isinstance(layer, nn.ReLU):
                layer.inplace = False  # what enters a part of the trunk is kept for recomputing
        self.avgpool = whole.avgpool

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        names = {layer: name for name, layer in ENDS.items()}
        steps: list[Step] = [
            (names.get(number, ""), layer) for number, layer in enumerate(self.layers)
        ]
        steps += [("flatten", self._flatten)]
        return self.run_steps(steps, x, wanted)

    def _flatten(self, x: Tensor) -> Tensor:
        return self.avgpool(x).flatten(1)  # type: ignore[no-any-return]
