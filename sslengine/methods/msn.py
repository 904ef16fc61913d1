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

The teacher is a momentum copy, whose momentum rises along a line; the prototypes are not copied.
They have no weight decay.

In the authors' code the gradient of the prototypes is summed over ranks, here it is their mean;
AdamW makes the same step of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.components import argument_problems
from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least, share
from sslengine.data.batch.masks import DROPPED, PATCH_SIZE
from sslengine.distributed.collectives import sum_over_ranks
from sslengine.distributed.ranks import world_size
from sslengine.losses.sinkhorn import sinkhorn
from sslengine.methods.base import Method, Multiplier, Step
from sslengine.methods.dino import prototypes_used
from sslengine.methods.whole import EMA, Batch
from sslengine.models.heads.mlp import check_rows, perceptron
from sslengine.models.trunks.tokens import SHOWN
from sslengine.models.view_trunk import ViewTrunk
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
    # Width of the embeddings and of the prototypes.
    output_dim: int = at_least(1, 256)
    # Further arguments of msn_head.
    head: dict[str, Any] = field(default_factory=dict)
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

    def check(self) -> Iterator[str]:
        yield from argument_problems(MSNHead, self.head, "head", ("in_dim", "output_dim"))

    def infer(self, facts: RunFacts) -> None:
        """Take over the head of earlier YAML, and of VISSL's, which has the prototypes."""
        if head := facts.head(HEAD):
            self.output_dim = head.get("output_dim", 256)
            self.num_prototypes = head.get("num_prototypes") or self.num_prototypes
            self.head = {key: head[key] for key in ("hidden_dim", "use_bn") if key in head}


class MSNEmbeddings(nn.Module):
    """Embeddings of views, of which the first are shown in part."""

    def __init__(self, trunk: ViewTrunk, options: MSNOptions) -> None:
        super().__init__()
        trunk.take(SHOWN)
        self.trunk = trunk
        self.head = MSNHead(trunk.width, output_dim=options.output_dim, **options.head)

    def forward(
        self, images: Sequence[Tensor], shown: Tensor | None = None, focal: Sequence[Tensor] = ()
    ) -> Tensor:
        inputs = {} if shown is None else {SHOWN: shown}
        tokens = [self.trunk(torch.cat([*images]), ["lastCLS"], **inputs)]
        embeddings = [self.head(tokens[0]["lastCLS"])]
        if focal:
            embeddings += [self.head(self.trunk(torch.cat([*focal]), ["lastCLS"])["lastCLS"])]
        return torch.cat(embeddings)


@register_loss(
    NAME,
    options=MSNOptions,
    several_views=True,
    collators=(DROPPED,),
    trunk_input=SHOWN,
    features=("lastCLS",),
    patch_size=PATCH_SIZE,
)
class MSNLoss(Method):
    judged_network: ClassVar[str] = "teacher"  # as in the authors' evaluations
    earlier_names: ClassVar = {"heads.0.": "student.head."}

    def __init__(self, options: MSNOptions, trunk: ViewTrunk) -> None:
        super().__init__()
        self.options = options
        self.student = MSNEmbeddings(trunk, options)
        self.prototypes = nn.Linear(options.output_dim, options.num_prototypes, bias=False)
        self.teacher = EMA(
            self.student, options.momentum, "linear", options.momentum_end, dropout=False
        )

    def multipliers(self) -> Mapping[str, Multiplier]:
        return {"prototypes.weight": Multiplier(weight_decay=0.0)}

    def forward(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        options, given = self.options, batch.sample
        anchors = self.student(given["random_views"], given[SHOWN], given.get("focal_views", ()))
        prototypes = F.normalize(self.prototypes.weight)
        targets = self.targets(self.teacher(batch.views), prototypes)
        log_p = self._scores(anchors, prototypes).log_softmax(dim=-1)
        p = log_p.exp()
        views = log_p.unflatten(0, (-1, len(targets)))
        matched = -torch.einsum("bk,vbk->", targets, views)
        mean = sum_over_ranks(p.mean(dim=0)) / world_size()
        losses = {
            "cross_entropy": matched / len(anchors),
            "me_max": math.log(len(prototypes)) - torch.special.entr(mean).sum(),
        }
        loss = losses["cross_entropy"] + options.me_max_weight * losses["me_max"]
        if options.entropy_weight:
            losses["entropy"] = torch.special.entr(p).sum(dim=-1).mean()
            loss = loss + options.entropy_weight * losses["entropy"]
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
