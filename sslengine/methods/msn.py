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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least, share
from sslengine.data.batch.masks import DROPPED, PATCH_SIZE
from sslengine.distributed.collectives import sum_over_ranks
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError
from sslengine.losses.sinkhorn import sinkhorn
from sslengine.methods.base import Method, Multiplier, Step
from sslengine.methods.dino import prototypes_used
from sslengine.methods.teacher import Teacher
from sslengine.models.heads.mlp import check_rows, perceptron
from sslengine.registry import register_head, register_loss

NAME, HEAD = "msn_loss", "msn_head"


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
        embedding: Tensor = self.mlp(check_rows(x, self.in_features, HEAD))
        if self.return_query:
            return F.normalize(embedding, dim=1)
        if self.prototypes is None:
            return embedding
        cosines = F.normalize(embedding, dim=1) @ F.normalize(self.prototypes, dim=1).T
        return (cosines / self.temperature).softmax(dim=1)


@dataclass
class MSNOptions:
    # How many prototypes.
    num_prototypes: int = at_least(1, 1024)
    # Their width. Set from the head.
    output_dim: int = at_least(1, 256)
    # Of the cosine similarities to prototypes.
    temperature: float = above(0, 0.1)
    # The target's probabilities are raised to the power 1 / sharpen.
    sharpen: float = above(0, 0.25)
    # Sinkhorn-Knopp iterations on the targets; 0: none.
    sinkhorn_iterations: int = at_least(0, 3)
    # Weight of the entropy of the mean prediction, which is maximised.
    me_max_weight: float = at_least(0, 1.0)
    # Weight of the mean entropy of the predictions, which is minimised.
    entropy_weight: float = at_least(0, 0.0)
    # The teacher's momentum at the start.
    momentum: float = share(0.996)
    # The teacher's momentum at the end.
    momentum_end: float = share(0.9992)

    def infer(self, facts: RunFacts) -> None:
        head = facts.head(HEAD)
        if head.get("num_prototypes") and not head.get("return_query"):
            raise ConfigError(
                f"config.LOSS.{NAME}: takes embeddings and has prototypes itself. Set "
                f"num_prototypes of {HEAD} to 0, and that of {NAME} to {head['num_prototypes']}."
            )
        self.output_dim = head.get("output_dim", self.output_dim)


@register_loss(
    NAME,
    options=MSNOptions,
    several_views=True,
    collators=(DROPPED,),
    heads=(HEAD,),
    inputs=("target_views",),
    patch_size=PATCH_SIZE,
)
class MSNLoss(Method):
    judged_network: ClassVar[str] = "teacher"  # as in the authors' evaluations

    def __init__(self, options: MSNOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options
        bound = options.output_dim**-0.5
        shape = options.num_prototypes, options.output_dim
        self.prototypes = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.teacher = Teacher(
            options.momentum, schedule="linear", dropout=False, end=options.momentum_end
        )

    def multipliers(self) -> Mapping[str, Multiplier]:
        return {"prototypes": Multiplier(weight_decay=0.0)}

    def forward(self, output: Any, sample: Any, step: Step) -> dict[str, Tensor]:
        """output: the embeddings of random views, and of focal views if there are any."""
        images = sample["input"]["target_views"]
        seen: Tensor = self.teacher({"random_views": images}, step)
        anchors = output if isinstance(output, Tensor) else torch.cat(output)
        prototypes = F.normalize(self.prototypes)
        targets = self.targets(seen, prototypes)
        log_p = self._scores(anchors, prototypes).log_softmax(dim=-1)
        p = log_p.exp()
        views = log_p.unflatten(0, (-1, len(images)))
        matched = -torch.einsum("bk,vbk->", targets, views)
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
