"""Two views as CLIP has an image and its caption: each is told from those of all other images.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021, figure 3.
The temperature is learned, as its inverse's logarithm, and never sharper than `sharpest`.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.distributed.collectives import gather
from sslengine.methods.base import Method, Multiplier, Step


class CLIPLike(Method):
    def __init__(self, temperature: float = 0.07, sharpest: float = 100.0) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        self.limit = math.log(sharpest)

    def forward(self, output: Tensor, sample: dict, step: Step) -> Tensor:
        one, two = F.normalize(output, dim=1).chunk(2)
        (ones, start), (twos, _) = gather(one), gather(two)
        own = torch.arange(start, start + len(one), device=output.device)
        scale = self.logit_scale.exp()
        step.put("temperature", 1 / scale.detach())
        of_one = F.cross_entropy(scale * one @ twos.T, own)
        return (of_one + F.cross_entropy(scale * two @ ones.T, own)) / 2

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        self.logit_scale.clamp_(max=self.limit)

    def multipliers(self) -> dict[str, Multiplier]:
        return {"logit_scale": Multiplier(weight_decay=0.0)}
