"""Predict the mean colour of hidden patches from the others."""

from torch import Tensor, nn
from torch.nn import functional as F

import sslengine as ssl


class Colours(ssl.Method):
    requires = ssl.Requirements(collators=("patch_noise_collator",))  # its batch has `noise`

    def __init__(self, trunk: ssl.ViewTrunk, share: float = 0.6) -> None:
        super().__init__()
        trunk.take("mask")  # a learned token replaces hidden patches
        self.trunk, self.share = trunk, share
        self.colour = nn.Linear(trunk.width, 3)

    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        (images,), noise = batch.views, batch.sample["noise"]  # noise: images x patches
        hidden = noise < noise.quantile(self.share, dim=1, keepdim=True)
        patches = self.trunk(images, ["lastPATCH"], mask=hidden)["lastPATCH"]
        side = round((images[0, 0].numel() / noise.shape[1]) ** 0.5)
        wanted = F.avg_pool2d(images, side).flatten(2).mT
        apart = (self.colour(patches) - wanted).square().mean(dim=2)
        return (apart * hidden).sum() / hidden.sum()
