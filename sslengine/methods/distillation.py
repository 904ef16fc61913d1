"""Distillation: a student learns what a frozen teacher makes of the same views.

With outputs t of the teacher and s of the student's head for the same images,

    cosine    loss = mean over rows of 1 - cos(s, t)
    mse       loss = mean over rows and channels of (s - t)^2
    kl        p = softmax(t / teacher_temp),  q = softmax(s / student_temp)
              loss = mean over rows of sum_k p_k (log p_k - log q_k)

For cosine and mse, t is a feature of the teacher's trunk, and the student's head maps to its width;
a row is an image, or a token. For kl, t are the scores of the teacher's head, such as DINO's for
its prototypes. The teacher is any trained network, see FrozenOptions; it is not trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, choice
from sslengine.errors import TrainingError
from sslengine.losses.views import described
from sslengine.methods.base import Method, Step
from sslengine.models.frozen import FrozenNetwork, FrozenOptions
from sslengine.registry import register_loss

NAME = "distillation_loss"
COSINE, MSE, KL = "cosine", "mse", "kl"


@dataclass
class DistillationOptions:
    # The trained network that the student learns from.
    teacher: FrozenOptions = field(default_factory=FrozenOptions)
    # cosine, mse: of features; kl: of the scores of heads.
    form: str = choice(COSINE, MSE, KL)
    # The feature of the teacher's trunk; empty: its final one. Not used by kl.
    feature: str = ""
    # Of the teacher's scores, with kl.
    teacher_temp: float = above(0, 0.04)
    # Of the student's scores, with kl.
    student_temp: float = above(0, 0.1)

    def check(self) -> Iterator[str]:
        if self.form == KL and self.feature:
            yield "feature: kl compares scores of heads, not features."


@register_loss(NAME, options=DistillationOptions)
class DistillationLoss(Method):
    def __init__(self, options: DistillationOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options
        features = (options.feature,) if options.feature else ()
        where = f"config.LOSS.{NAME}.teacher"
        self.teacher = FrozenNetwork(options.teacher, where, options.form == KL, features)

    def attach(self, model: nn.Module) -> None:
        self.teacher.load(model)

    def forward(self, output: Any, sample: Any, step: Step) -> Tensor:
        """output: of one head, for the views that the teacher gets."""
        wanted = _last(self.teacher(sample["input"], step))
        made = _last(output)
        if not isinstance(made, Tensor) or made.shape != wanted.shape:
            raise TrainingError(
                f"{NAME}: the teacher's output has the shape {tuple(wanted.shape)}, and the model "
                f"returned {described(output)}. End config.MODEL.HEAD.PARAMS in the width "
                f"{wanted.shape[-1]}."
            )
        options = self.options
        if options.form == COSINE:
            return 1.0 - F.cosine_similarity(made, wanted, dim=-1).mean()
        if options.form == MSE:
            return F.mse_loss(made, wanted)
        log_p = (wanted / options.teacher_temp).log_softmax(dim=-1).flatten(0, -2)
        log_q = (made / options.student_temp).log_softmax(dim=-1).flatten(0, -2)
        return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def _last(output: Any) -> Any:
    """A head may return embeddings before its scores."""
    return output[-1] if isinstance(output, (list, tuple)) else output
