"""A linear layer with weight normalisation: direction and length are separate parameters.

    w_k = g_k * v_k / |v_k|

The parameters have the names of torch's old `weight_norm` (`weight_g`, `weight_v`), as in VISSL's
checkpoints. torch's version stores a computed tensor on the module, so it cannot be deep-copied.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class WeightNormLinear(nn.Module):
    """Without bias. Lengths start at 1, and stay 1 if they are not learnt."""

    def __init__(self, in_features: int, out_features: int, learn_lengths: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight_g = nn.Parameter(torch.ones(out_features, 1), requires_grad=learn_lengths)
        self.weight_v = nn.Parameter(torch.empty(out_features, in_features))
        nn.init.kaiming_uniform_(self.weight_v, a=math.sqrt(5))  # as nn.Linear

    @property
    def weight(self) -> Tensor:
        length = torch.linalg.vector_norm(self.weight_v, dim=1, keepdim=True)
        weight: Tensor = self.weight_v * (self.weight_g / length)
        return weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"
