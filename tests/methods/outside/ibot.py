"""iBOT: predict what a slow copy of the model sees in whole images, where patches are hidden.

Zhou et al., iBOT: Image BERT Pre-Training with Online Tokenizer, 2022. With scores t of the teacher
and s of the student, for class tokens and for patches,

    p = softmax((t - c) / T),    q = softmax(s / 0.1)
    classes  mean over images, global views u and all views v != u of  - sum p_u log q_v
    patches  mean over images and global views of the mean over hidden patches of  - sum p log q
    loss = classes + patches

The student sees its global views with patches hidden, the teacher sees all of them. The centres c
follow the means of the teacher's scores over all ranks, behind their use.
"""

import torch
from torch import Tensor, nn

from sslengine.distributed.collectives import gather
from sslengine.methods.base import Method, Step
from sslengine.methods.dino import DINOHead
from sslengine.methods.teacher import Teacher
from sslengine.models.options import VisionTransformerOptions
from sslengine.models.trunks.vision_transformer import VisionTransformer
from sslengine.registry import register_trunk


@register_trunk("masked_vision_transformer", options=VisionTransformerOptions)
class MaskedVisionTransformer(VisionTransformer):
    """With a learned token in the place of each patch that `mask`, N x rows x columns, hides."""

    extra_inputs = ("mask",)

    def __init__(self, options: VisionTransformerOptions, in_chans: int = 3) -> None:
        super().__init__(options, in_chans)
        self.mask_token = nn.Parameter(torch.zeros(self.embed_dim))

    def _pos_embed(self, x: Tensor) -> Tensor:
        if (mask := self.extra.get("mask")) is not None:
            x = torch.where(mask.unsqueeze(-1), self.mask_token.to(x.dtype), x)
        return super()._pos_embed(x)


class TokenHead(DINOHead):
    """Class tokens, N x D, or all tokens, N x T x D."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


class IBOT(Method):
    judged_network = "teacher"

    def __init__(
        self, scores: int = 8192, momentum: float = 0.996, sharpest: float = 0.04,
        softest: float = 0.07, warmup_epochs: int = 30,
    ) -> None:  # fmt: skip
        """sharpest, softest: the teacher's temperature; that for patches rises between them."""
        super().__init__()
        self.teacher = Teacher(momentum, dropout=False)
        self.register_buffer("centers", torch.zeros(2, scores))  # of class tokens, of patches
        self.sharpest, self.softest, self.warmup = sharpest, softest, warmup_epochs

    def forward(self, output: list[Tensor], sample: dict, step: Step) -> dict[str, Tensor]:
        """output: scores of all tokens of global views, and of the class token of local ones."""
        inputs, (tokens, local) = sample["input"], output
        scores = self.teacher({"global_views": inputs["global_views"]}, step)
        temperature = self._patch_temperature(step.epoch)
        p_class = ((scores[:, 0] - self.centers[0]) / self.sharpest).softmax(-1)
        p_patch = ((scores[:, 1:] - self.centers[1]) / temperature).softmax(-1)
        log_q = (tokens / 0.1).log_softmax(-1)
        log_q_class = torch.cat([log_q[:, 0], (local / 0.1).log_softmax(-1)])
        views = p_class.unflatten(0, (2, -1))
        images = views.shape[1]
        pairs = -torch.einsum("uik,vik->uv", views, log_q_class.unflatten(0, (-1, images))) / images
        classes = (pairs.sum() - pairs.diagonal().sum()) / (
            pairs.numel() - 2
        )  # no view with itself
        hidden = inputs["mask"].flatten(1)
        of_each = -(p_patch * log_q[:, 1:]).sum(-1) * hidden
        patches = (of_each.sum(1) / hidden.sum(1).clamp(min=1)).mean()
        if step.train:
            means = torch.stack([scores[:, 0].mean(0), scores[:, 1:].mean((0, 1))])
            self.centers.lerp_(gather(means.unsqueeze(0)).rows.mean(0), 0.1)
        return {"loss": classes + patches, "classes": classes, "patches": patches}

    def _patch_temperature(self, epoch: int) -> float:
        risen = min(1.0, epoch / max(1, self.warmup - 1))
        return self.sharpest + (self.softest - self.sharpest) * risen
