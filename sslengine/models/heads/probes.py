"""Heads that judge a frozen feature: a linear layer, or attention over tokens and a linear layer.

They compute in float32 for any precision of the model. A probe whose output is not finite (its
learning rate is too high) gives zeros from then on and has no gradient: other probes of the same
run continue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sslengine.config.ranges import above, at_least, choice
from sslengine.errors import ConfigError
from sslengine.registry import register_head

NORMS = ("none", "batch", "layer")


@dataclass
class LinearProbeHeadOptions:
    # Widths of the feature and of the output: [auto, 10].
    dims: Sequence[int]
    # Before the linear layer: none, batch (without learned scale, as in MAE) or layer.
    norm: str = choice(*NORMS)
    # Standard deviation of the initial weights.
    std: float = at_least(0, 0.01)


@dataclass
class AttentiveProbeOptions:
    # Width of a token.
    in_dim: int
    # Width of the output.
    out_dim: int
    # Attention heads; 0: one for every 64 values of a token.
    heads: int = at_least(0, 0)
    # query: one learned query, without projections of it or of the output (AIM, CAPI); block: a
    # transformer block of cross-attention, as in V-JEPA; blocks: the same without projection of the
    # output, behind blocks of self-attention, as in V-JEPA 2.
    form: str = choice("query", "block", "blocks")
    # Of `blocks`: their number, with the last one, of cross-attention.
    depth: int = at_least(1, 4)
    # Of a block: the width of its perceptron, as a multiple of in_dim.
    mlp_ratio: float = above(0, 4.0)
    # Of each token, before all else: none, batch (without learned scale) or layer.
    norm: str = choice(*NORMS)


def norm_of(name: str, width: int) -> nn.Module:
    """Return the norm of rows of this width."""
    if name == "batch":
        return nn.BatchNorm1d(width, affine=False, eps=1e-6)
    return nn.LayerNorm(width) if name == "layer" else nn.Identity()


class Probe(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        on_meta = x.device.type == "meta"  # which has no autocast: widths are being computed
        with nullcontext() if on_meta else torch.autocast(x.device.type, enabled=False):
            output = self.logits(x.float())
        return torch.where(output.isfinite().all(), output, torch.zeros_like(output))

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor: ...


@register_head("linear_probe", options=LinearProbeHeadOptions)
class LinearProbeHead(Probe):
    """Initialised as in DINOv2: weights of standard deviation 0.01, no bias."""

    def __init__(self, options: LinearProbeHeadOptions) -> None:
        super().__init__()
        if len(options.dims) != 2:
            raise ConfigError(f"dims: expected two widths, got {list(options.dims)}.")
        width, outputs = options.dims
        self.norm = norm_of(options.norm, width)
        self.linear = nn.Linear(width, outputs)
        nn.init.normal_(self.linear.weight, std=options.std)
        nn.init.zeros_(self.linear.bias)

    def logits(self, x: Tensor) -> Tensor:
        """N x C, or N x C x 1 x 1."""
        return self.linear(self.norm(x.flatten(1)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """What V-JEPA has around the attention: projections of the query and, not in V-JEPA 2, of what
    is found, which is added to the query, and a perceptron."""

    def __init__(self, width: int, mlp_ratio: float, projected: bool = True) -> None:
        super().__init__()
        self.norm_tokens, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.output = nn.Linear(width, width) if projected else nn.Identity()
        self.mlp = perceptron(width, mlp_ratio)

    def forward(self, query: Tensor, found: Tensor) -> Tensor:
        with_found = query + self.output(found)
        return with_found + self.mlp(self.norm(with_found))  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """A transformer block of all tokens."""

    def __init__(self, width: int, heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_tokens, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.mlp = perceptron(width, mlp_ratio)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.query_key_value(self.norm_tokens(tokens)).chunk(3, dim=2)
        tokens = tokens + self.output(attended(query, key, value, self.heads))
        return tokens + self.mlp(self.norm(tokens))  # type: ignore[no-any-return]


def perceptron(width: int, ratio: float) -> nn.Sequential:
    hidden = int(width * ratio)
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def make_smaller(block: Block | SelfAttention, place: int) -> None:
    """The weights of what a block adds, by the square root of twice its place, from 1."""
    with torch.no_grad():
        for layer in (block.output, block.mlp[-1]):
            if isinstance(layer, nn.Linear):
                layer.weight.div_((2 * place) ** 0.5)


def attended(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Attend with all heads, and join them. All are N x tokens x C."""
    apart = (each.unflatten(2, (heads, -1)).transpose(1, 2) for each in (query, key, value))
    return F.scaled_dot_product_attention(*apart).transpose(1, 2).flatten(2)


@register_head("attentive_probe", options=AttentiveProbeOptions)
class AttentiveProbe(Probe):
    """One learned query attends to all tokens, and a linear layer to what it finds. Feature maps
    are rows of tokens."""

    def __init__(self, options: AttentiveProbeOptions) -> None:
        super().__init__()
        width, outputs = options.in_dim, options.out_dim
        self.norm = norm_of(options.norm, width)
        self.heads = options.heads or max(1, width // 64)
        if width % self.heads:
            raise ConfigError(f"heads: {width} values cannot be shared by {self.heads} heads.")
        self.query = nn.Parameter(torch.empty(width))
        self.key_value = nn.Linear(width, 2 * width)
        self.linear = nn.Linear(width, outputs)
        self.block: Block | None = None
        self.before = nn.Sequential()
        if options.form != "query":
            self.block = Block(width, options.mlp_ratio, projected=options.form == "block")
        if options.form == "blocks":
            self.before.extend(SelfAttention(width, self.heads, options.mlp_ratio)
                               for _ in range(options.depth - 1))  # fmt: skip
        nn.init.trunc_normal_(self.query, std=0.02)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        for place, block in enumerate(self.before, start=1):
            make_smaller(block, place)  # type: ignore[arg-type]
        if self.block is not None:
            make_smaller(self.block, max(1, len(self.before)))  # V-JEPA 2: as the one before it

    def logits(self, x: Tensor) -> Tensor:
        """N x T x C, N x C x H x W, or N x C, a single token."""
        tokens = x.flatten(2).transpose(1, 2) if x.ndim == 4 else x
        tokens = tokens.unsqueeze(1) if x.ndim == 2 else tokens
        tokens = self.norm(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])
        if self.block is None:
            pooled = self._pooled(self.query, tokens)
        else:
            seen = self.block.norm_tokens(self.before(tokens))
            pooled = self.block(self.query, self._pooled(self.block.query(self.query), seen))
        return self.linear(pooled)  # type: ignore[no-any-return]

    def _pooled(self, query: Tensor, tokens: Tensor) -> Tensor:
        """Return what the query finds: N x C."""
        key, value = self.key_value(tokens).chunk(2, dim=2)
        return attended(query.expand(len(tokens), 1, -1), key, value, self.heads)[:, 0]
