"""MSN: match a view with hidden patches to another view, by their similarity to prototypes.

Assran et al., Masked Siamese Networks for Label-Efficient Learning, 2022. With the embeddings z of
the model for anchors (random views of which patches are dropped, and small focal views), those of
the teacher for a random view, the target, and K learned prototypes c_k,

    p = softmax_k(cos(z, c_k) / temperature)             of an anchor, and of the target
    p+ = p ** (1 / sharpen), normalised                  of the target, without gradient
    p+ = Sinkhorn-Knopp(p+) over the targets of all ranks, if iterations are above 0
    loss = mean over anchors of - sum_k p+_k log p_k
         + me_max_weight * (log K - H(mean of p over the anchors of all ranks))
         + entropy_weight * mean over anchors of H(p)

The teacher is a momentum copy of the model, whose momentum rises along a line; the prototypes are
not copied. They have no weight decay. The model's inputs and outputs:

    MULTI_INPUT_HEAD_MAPPING:
      - [random_views, {feat_names: [lastCLS], head_index: 0, additional_keys: [shown]}]
      - [focal_views, {feat_names: [lastCLS], head_index: 0}]

In the authors' code the gradient of the prototypes is summed over ranks, here it is their mean;
AdamW makes the same step of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.data.batch.dropped_patches import NAME as COLLATOR
from sslengine.data.batch.dropped_patches import PATCH_SIZE
from sslengine.distributed.collectives import sum_over_ranks
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.losses.shown import ShownPatches
from sslengine.losses.sinkhorn import sinkhorn
from sslengine.losses.views import described, expect_crops, inputs_of
from sslengine.methods.base import Method, Multiplier, Step
from sslengine.methods.dino import perceptron, prototypes_used
from sslengine.methods.teacher import Teacher
from sslengine.registry import register_head, register_loss

NAME, HEAD = "msn_loss", "msn_head"
PATCHES = ShownPatches(NAME, COLLATOR, PATCH_SIZE)


@register_head(HEAD)
class MSNHead(nn.Module):
    """Three linear layers with GELU between them; as VISSL's also with prototypes.

    It returns the embedding, which msn_loss takes. With num_prototypes, for weights that VISSL
    has trained, it returns the shares of the prototypes, softmax(cos / temperature); with
    return_query the embedding at length 1.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_dim: int = 2048,
        output_dim: int = 256,
        use_bn: bool = True,
        num_prototypes: int = 0,
        return_query: bool = False,
        temperature: float = 0.1,
    ) -> None:
        """
        in_dim: width of the feature.
        hidden_dim: width of the layers before the last.
        output_dim: width of the embedding, and of the prototypes.
        use_bn: batch norm after each layer but the last.
        num_prototypes: prototypes of the head itself; 0: those of msn_loss.
        return_query: the output is the embedding at length 1, as VISSL's benchmarks take it.
        temperature: of the cosine similarities to the head's prototypes.
        """
        super().__init__()
        self.in_features, self.temperature = in_dim, temperature
        self.return_query = return_query
        self.mlp = perceptron([in_dim, hidden_dim, hidden_dim, output_dim], use_bn)
        between = 3 if use_bn else 2  # a linear layer, perhaps batch norm, GELU
        self.names_in_vissl = {f"fc.fc{each + 1}": f"mlp.{between * each}" for each in range(3)}
        if use_bn:
            self.names_in_vissl |= {f"fc.bn{each + 1}": f"mlp.{3 * each + 1}" for each in range(2)}
        if num_prototypes:
            bound = output_dim**-0.5
            values = torch.empty(num_prototypes, output_dim).uniform_(-bound, bound)
            # Of a query they are kept, as in VISSL's files, and have no part in the output.
            self.prototypes = nn.Parameter(values, requires_grad=not return_query)
        else:
            self.register_parameter("prototypes", None)

    def forward(self, x: Tensor) -> Tensor:
        """N x C, or N x C x 1 x 1."""
        x = x.flatten(1) if x.shape[2:] == (1, 1) else x
        if x.dim() != 2 or x.shape[1] != self.in_features:
            raise ConfigError(
                f"config.MODEL.HEAD.PARAMS: {HEAD} with in_dim {self.in_features} got features of "
                f"shape {tuple(x.shape)}; it takes N x {self.in_features}."
            )
        embedding: Tensor = self.mlp(x)
        if self.return_query:
            return F.normalize(embedding, dim=1)
        if self.prototypes is None:
            return embedding
        cosines = F.normalize(embedding, dim=1) @ F.normalize(self.prototypes, dim=1).T
        return (cosines / self.temperature).softmax(dim=1)


@dataclass
class MSNOptions:
    # How many prototypes.
    num_prototypes: int = 1024
    # Their width. Set from the head.
    output_dim: int = 256
    # Of the cosine similarities to prototypes.
    temperature: float = 0.1
    # The target's probabilities are raised to the power 1 / sharpen.
    sharpen: float = 0.25
    # Sinkhorn-Knopp iterations on the targets; 0: none.
    sinkhorn_iterations: int = 3
    # Weight of the entropy of the mean prediction, which is maximised.
    me_max_weight: float = 1.0
    # Weight of the mean entropy of the predictions, which is minimised.
    entropy_weight: float = 0.0
    # The teacher's momentum at the start.
    momentum: float = 0.996
    # The teacher's momentum at the end.
    momentum_end: float = 0.9992

    where: ClassVar[str] = f"config.LOSS.{NAME}"

    def infer(self, facts: RunFacts) -> None:
        head = facts.head(HEAD)
        if head is None:
            raise ConfigError(f"{self.where}: needs {HEAD} in config.MODEL.HEAD.PARAMS.")
        if head.get("num_prototypes") and not head.get("return_query"):
            raise ConfigError(
                f"{self.where}: takes embeddings and has prototypes itself. Set num_prototypes "
                f"of {HEAD} to 0, and that of {NAME} to {head['num_prototypes']}."
            )
        expect_crops(facts, self.where, [COLLATOR])
        PATCHES.expect_size(facts)
        self.output_dim = head.get("output_dim", self.output_dim)

    def check(self) -> Iterator[str]:
        for key in ("num_prototypes", "output_dim"):
            if getattr(self, key) < 1:
                yield f"{key}: expected 1 or more, got {getattr(self, key)}."
        for key in ("temperature", "sharpen"):
            if getattr(self, key) <= 0:
                yield f"{key}: expected a number above 0, got {getattr(self, key)}."
        for key in ("sinkhorn_iterations", "me_max_weight", "entropy_weight"):
            if getattr(self, key) < 0:
                yield f"{key}: expected 0 or more, got {getattr(self, key)}."
        for key in ("momentum", "momentum_end"):
            if not 0 <= getattr(self, key) <= 1:
                yield f"{key}: expected a number from 0 to 1, got {getattr(self, key)}."


@register_loss(NAME, options=MSNOptions)
class MSNLoss(Method):
    judged_network: ClassVar[str] = "teacher"  # as in the authors' evaluations

    def __init__(self, options: MSNOptions, run: RunFacts) -> None:
        super().__init__()
        self.options, self.run = options, run
        bound = options.output_dim**-0.5
        shape = options.num_prototypes, options.output_dim
        self.prototypes = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.teacher = Teacher(
            options.momentum, schedule="linear", dropout=False, end=options.momentum_end
        )

    def attach(self, model: nn.Module) -> None:
        PATCHES.expect_size_of(model, self.run)

    def multipliers(self) -> Mapping[str, Multiplier]:
        return {"prototypes": Multiplier(weight_decay=0.0)}

    def forward(self, output: Any, sample: Any, step: Step) -> dict[str, Tensor]:
        """output: the embeddings of random views, and of focal views if there are any."""
        made_by = f"COLLATE_FUNCTION: {COLLATOR}"
        (images,) = inputs_of(sample, NAME, ["target_views"], made_by)
        seen: Tensor = self.teacher({"random_views": images}, step)
        anchors = self._anchors(output, len(images))
        prototypes = F.normalize(self.prototypes)
        targets = self.targets(seen, prototypes)
        log_p = self._scores(anchors, prototypes).log_softmax(dim=-1)
        p = log_p.exp()
        matched = -torch.einsum("bk,vbk->", targets, log_p.unflatten(0, (-1, len(images))))
        mean = sum_over_ranks(p.mean(dim=0)) / world_size()
        losses = {
            "cross_entropy": matched / len(anchors),
            "me_max": math.log(len(prototypes)) - torch.special.entr(mean).sum(),
        }
        loss = losses["cross_entropy"] + self.options.me_max_weight * losses["me_max"]
        if self.options.entropy_weight:
            losses["entropy"] = torch.special.entr(p).sum(dim=-1).mean()
            loss = loss + self.options.entropy_weight * losses["entropy"]
        signs = {
            "teacher_entropy": torch.special.entr(targets).sum(dim=-1).mean(),
            "prototypes_used": prototypes_used(targets),
        }
        return {"loss": loss, **losses, **signs}

    @torch.no_grad()
    def targets(self, seen: Tensor, prototypes: Tensor) -> Tensor:
        """Sharpened, and assigned evenly over all ranks. seen: the teacher's embeddings."""
        options = self.options
        log_p = (self._scores(seen, prototypes) / options.sharpen).log_softmax(dim=-1)
        return sinkhorn(log_p, epsilon=1.0, iterations=options.sinkhorn_iterations)

    def _scores(self, embeddings: Tensor, prototypes: Tensor) -> Tensor:
        return F.normalize(embeddings) @ prototypes.mT / self.options.temperature

    def _anchors(self, output: Any, images: int) -> Tensor:
        parts = [output] if isinstance(output, Tensor) else output
        rows = [each for each in parts if isinstance(each, Tensor) and each.ndim == 2]
        if not rows or len(rows) < len(parts) or sum(map(len, rows)) % images:
            raise TrainingError(
                f"{NAME} needs embeddings of {images} images in random views and focal views; the "
                f"model returned {described(output)}. See MULTI_INPUT_HEAD_MAPPING in "
                f"configs/photos/msn.yaml."
            )
        anchors = rows[0] if len(rows) == 1 else torch.cat(rows)
        if anchors.shape[1] != self.prototypes.shape[1]:
            raise TrainingError(
                f"config.LOSS.{NAME}.output_dim: it is {self.prototypes.shape[1]}, and embeddings "
                f"have the width {anchors.shape[1]}."
            )
        return anchors
