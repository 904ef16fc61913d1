"""Heads that judge a frozen feature: a linear layer, or attention over tokens and a linear layer.

They compute in float32 for any precision of the model. A probe whose output is not finite (its
learning rate is too high) gives zeros from then on and has no gradient: other probes of the same
run continue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sslengine.config.sections import one_of
from sslengine.errors import ConfigError
from sslengine.registry import register_head

NORMS = ("none", "batch", "layer")


@dataclass
class LinearProbeHeadOptions:
    # Widths of the feature and of the output: [auto, 10].
    dims: Sequence[int]
    # Before the linear layer: none, batch (without learned scale, as in MAE) or layer.
    norm: str = "none"

    def check(self) -> Iterator[str]:
        yield from one_of(self, "norm", *NORMS)


@dataclass
class AttentiveProbeOptions:
    # Width of a token.
    in_dim: int
    # Width of the output.
    out_dim: int
    # Attention heads; 0: one for every 64 values of a token.
    heads: int = 0
    # query: one learned query, without projections of it or of the output (AIM, CAPI); block: a
    # transformer block of cross-attention, as in V-JEPA.
    form: str = "query"
    # Of a block: the width of its perceptron, as a multiple of in_dim.
    mlp_ratio: float = 4.0

    def check(self) -> Iterator[str]:
        yield from one_of(self, "form", "query", "block")
        if self.heads < 0:
            yield f"heads: expected 0 or more, got {self.heads}."
        if self.mlp_ratio <= 0:
            yield f"mlp_ratio: expected a number above 0, got {self.mlp_ratio:g}."


class Probe(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        on_meta = x.device.type == "meta"  # which has no autocast: widths are being computed
        with nullcontext() if on_meta else torch.autocast(x.device.type, enabled=False):
            output = self.logits(x.float())
        return torch.where(output.isfinite().all(), output, torch.zeros_like(output))

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor: ...


@register_head("linear_probe", options=LinearProbeHeadOptions)
class LinearProbe(Probe):
    """Initialised as in DINOv2: weights of standard deviation 0.01, no bias."""

    def __init__(self, options: LinearProbeHeadOptions) -> None:
        super().__init__()
        if len(options.dims) != 2:
            raise ConfigError(f"dims: expected two widths, got {list(options.dims)}.")
        width, outputs = options.dims
        self.norm: nn.Module = nn.Identity()
        if options.norm == "batch":
            self.norm = nn.BatchNorm1d(width, affine=False, eps=1e-6)
        elif options.norm == "layer":
            self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, outputs)
        nn.init.normal_(self.linear.weight, std=0.01)
        nn.init.zeros_(self.linear.bias)

    def logits(self, x: Tensor) -> Tensor:
        """N x C, or N x C x 1 x 1."""
        return self.linear(self.norm(x.flatten(1)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """What V-JEPA has around the attention: projections of the query and of what is found, which is
    added to the query, and a perceptron."""

    def __init__(self, width: int, mlp_ratio: float) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.norm_tokens, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def make_smaller(self) -> None:
        """The weights of what is added, by the square root of twice the depth, 1."""
        with torch.no_grad():
            for layer in (self.output, self.mlp[-1]):
                if isinstance(layer, nn.Linear):
                    layer.weight.div_(2**0.5)

    def forward(self, query: Tensor, found: Tensor) -> Tensor:
        with_found = query + self.output(found)
        return with_found + self.mlp(self.norm(with_found))  # type: ignore[no-any-return]


@register_head("attentive_probe", options=AttentiveProbeOptions)
class AttentiveProbe(Probe):
    """One learned query attends to all tokens, and a linear layer to what it finds. Feature maps
    are rows of tokens."""

    def __init__(self, options: AttentiveProbeOptions) -> None:
        super().__init__()
        width, outputs = options.in_dim, options.out_dim
        self.heads = options.heads or max(1, width // 64)
        if width % self.heads:
            raise ConfigError(f"heads: {width} values cannot be shared by {self.heads} heads.")
        self.query = nn.Parameter(torch.empty(width))
        self.key_value = nn.Linear(width, 2 * width)
        self.linear = nn.Linear(width, outputs)
        self.block = Block(width, options.mlp_ratio) if options.form == "block" else None
        nn.init.trunc_normal_(self.query, std=0.02)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        if self.block is not None:
            self.block.make_smaller()

    def logits(self, x: Tensor) -> Tensor:
        """N x T x C, N x C x H x W, or N x C, a single token."""
        tokens = x.flatten(2).transpose(1, 2) if x.ndim == 4 else x
        tokens = tokens.unsqueeze(1) if x.ndim == 2 else tokens
        if self.block is None:
            pooled = self._attended(self.query, tokens)
        else:
            asked = self.block.query(self.query)
            found = self._attended(asked, self.block.norm_tokens(tokens))
            pooled = self.block(self.query, found)
        return self.linear(pooled)  # type: ignore[no-any-return]

    def _attended(self, query: Tensor, tokens: Tensor) -> Tensor:
        """By all heads, joined: N x C."""
        rows, count, width = tokens.shape
        key, value = (
            self.key_value(tokens)
            .view(rows, count, 2, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        query = query.view(1, self.heads, 1, -1).expand(rows, -1, -1, -1)
        return F.scaled_dot_product_attention(query, key, value).reshape(rows, width)
