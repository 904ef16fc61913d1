"""Supervised losses, for training with labels, linear probes and pretext tasks.

Both take one output or several (one per head) with a single target, and sum over outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, share
from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.ranks import world_size
from sslengine.methods.base import Method
from sslengine.registry import register_loss

Outputs = Tensor | Sequence[Tensor]


@dataclass
class CrossEntropyOptions:
    # Weights of the classes; null: all equal.
    weight: list[float] | None = None
    # Samples with this label are ignored.
    ignore_index: int = -1
    # Normalise logits to unit length, as in cosine classifiers; use with a temperature.
    normalize_output: bool = False
    # Outputs are divided by it.
    temperature: float = above(0, 1.0)
    # The share of each target that is spread over all classes.
    label_smoothing: float = share(0.0)


@register_loss("cross_entropy_multiple_output_single_target", options=CrossEntropyOptions)
class CrossEntropyLoss(Method):
    """Targets are class numbers (B,) or, for mixed images, class probabilities (B, C); rows of
    indicators, as OneHotEncode makes them, count as such."""

    def __init__(self, options: CrossEntropyOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options
        weight = None if options.weight is None else torch.tensor(options.weight)
        # Not in checkpoints: it comes from the config.
        self.register_buffer("weight", weight, persistent=False)
        self.weight: Tensor | None

    def forward(self, output: Outputs, target: Tensor) -> Tensor:
        losses = [self._one(each, target) for each in _list_outputs(output)]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _one(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.options.normalize_output:
            logits = F.normalize(logits, dim=1)
        if self.options.temperature != 1:
            logits = logits / self.options.temperature
        return F.cross_entropy(
            logits,
            target if target.ndim == 1 else target.to(logits.dtype),
            weight=self.weight,
            ignore_index=self.options.ignore_index if target.ndim == 1 else -100,
            label_smoothing=self.options.label_smoothing,
        )


@dataclass
class BinaryCrossEntropyOptions:
    # Normalise outputs to unit length.
    normalize_output: bool = False


@register_loss("bce_logits_multiple_output_single_target", options=BinaryCrossEntropyOptions)
class BinaryCrossEntropyLoss(Method):
    """Several labels per image: targets (B, C) in {0, 1}, or -1 if unknown.

    Each class is averaged over the images with a known label; the classes are summed.
    """

    def __init__(self, options: BinaryCrossEntropyOptions, run: RunFacts) -> None:
        super().__init__()
        self.normalize_output = options.normalize_output

    def forward(self, output: Outputs, target: Tensor) -> Tensor:
        return torch.stack([self._one(each, target) for each in _list_outputs(output)]).sum()

    def _one(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.normalize_output:
            logits = F.normalize(logits, dim=1)
        known = (target != -1).to(logits.dtype)
        losses = F.binary_cross_entropy_with_logits(
            logits, target.to(logits.dtype), reduction="none"
        )
        return (losses * known).sum(dim=0).div(_average_over_ranks(known.sum(dim=0))).sum()


def _average_over_ranks(count: Tensor) -> Tensor:
    """The mean count over ranks, so that the gradient is that of one process with all images. In
    tests the ranks have different numbers of batches, so each divides by its own count."""
    count = count.detach()
    if torch.is_grad_enabled() and world_size() > 1:
        count = sum_in_place(count.clone()) / world_size()
        return count.clamp(min=1 / world_size())
    return count.clamp(min=1)


def _list_outputs(output: Outputs) -> Sequence[Tensor]:
    return [output] if isinstance(output, Tensor) else output
