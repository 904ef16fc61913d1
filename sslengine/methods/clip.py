"""CLIP and SigLIP: an image and its text attract, others of the batch repel.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021, section
2.3; Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023, equation 1. With x_i, y_j the
projections of images and texts of all ranks, of unit length, and s the learned exp(logit_scale):

    clip      (CE(s x_i . y, i) + CE(s y_i . x, i)) / 2, the mean over i; s is 100 at most
    siglip    - sum_ij log sigmoid(z_ij (s x_i . y_j + logit_bias)) / images; z_ii 1, other z_ij -1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.distributed.collectives import gather
from sslengine.errors import ConfigError
from sslengine.methods.base import Method, Multiplier
from sslengine.methods.step import Step
from sslengine.methods.whole import Batch
from sslengine.models.view_trunk import ViewTrunk
from sslengine.registry import register_loss
from sslengine.trust import expect_trust

ENCODER = "config.LOSS.clip_loss.text_encoder"


@register_loss("clip_loss")
class CLIP(Method):
    """
    text: the field that has the text of each image, or its vector (config.DATA.TRAIN.FIELDS).
    text_encoder: a network of transformers, by its name or folder; empty: `text` is a vector.
    pretrained: start from its weights; false: from random ones.
    tokens: texts are cut or filled to so many.
    vector_width: of the vector, without a text_encoder.
    dim: width of both projections.
    loss: clip (softmax) or siglip (sigmoid).
    """

    def __init__(
        self, trunk: ViewTrunk, text: str = "caption", text_encoder: str = "",
        pretrained: bool = True, tokens: int = 64, vector_width: int = 0, dim: int = 512,
        loss: Literal["clip", "siglip"] = "clip",
    ) -> None:  # fmt: skip
        super().__init__()
        self.trunk, self.text, self.sigmoid = trunk, text, loss == "siglip"
        self.text_encoder: nn.Module = nn.Identity()
        if text_encoder:
            self.text_encoder = TextEncoder(text_encoder, pretrained, tokens)
            vector_width = self.text_encoder.width
        elif vector_width < 1:
            raise ConfigError(
                f"{ENCODER}: expected a network of transformers for the text in {text!r}, by its "
                f"name or folder; or vector_width, if {text!r} is a vector."
            )
        self.image_projection = nn.Linear(trunk.width, dim, bias=False)
        self.text_projection = nn.Linear(vector_width, dim, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor([math.log(10 if self.sigmoid else 1 / 0.07)]))
        if self.sigmoid:
            self.logit_bias = nn.Parameter(torch.tensor([-10.0]))

    def forward(self, batch: Batch, step: Step) -> Tensor:
        views = F.normalize(self.image_projection(self.trunk(batch.views)), dim=-1)
        texts = F.normalize(self.text_projection(self.text_encoder(batch[self.text])), dim=-1)
        scale = self.logit_scale.exp()
        step.put("logit_scale", scale.detach().squeeze())
        everyone, start = gather(texts)
        own = torch.arange(start, start + len(texts), device=texts.device)
        losses = []
        for images in views:
            if self.sigmoid:
                logits = scale * images @ everyone.T + self.logit_bias
                pairs = F.logsigmoid(-logits).sum() + logits.gather(1, own[:, None]).sum()
                losses.append(-pairs / len(images))
            else:
                of_image = F.cross_entropy(scale * images @ everyone.T, own)
                of_text = F.cross_entropy(scale * texts @ gather(images).rows.T, own)
                losses.append((of_image + of_text) / 2)
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        if not self.sigmoid:
            self.logit_scale.clamp_(max=math.log(100))

    def multipliers(self) -> dict[str, Multiplier]:
        return {"logit_*": Multiplier(weight_decay=0.0)}


class TextEncoder(nn.Module):
    """A network of transformers: a vector for each text, the pooled one if the network has it."""

    def __init__(self, name: str, pretrained: bool, tokens: int) -> None:
        super().__init__()
        if not Path(name).is_dir():
            expect_trust(f"{name!r} may be downloaded", ENCODER, name)
        try:
            library: Any = import_module("transformers")
            self.tokenizer = library.AutoTokenizer.from_pretrained(name)
            if pretrained:
                network = library.AutoModel.from_pretrained(name)
            else:
                settings = library.AutoConfig.from_pretrained(name)
                network = library.AutoModel.from_config(settings)
        except ImportError as error:
            raise ConfigError(f"{ENCODER}: pip install 'sslengine[text]': {error}") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"{ENCODER}: {error}") from error
        self.network = getattr(network, "text_model", network)  # without CLIP's image tower
        self.width: int = self.network.config.hidden_size
        self.tokens = min(tokens, self.tokenizer.model_max_length)

    def forward(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=self.tokens,
            return_tensors="pt",
        ).to(self.network.device, non_blocking=True)  # fmt: skip
        output = self.network(**tokens)
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if pooled is None:
            kept = tokens["attention_mask"][..., None]
            pooled = (output.last_hidden_state * kept).sum(dim=1) / kept.sum(dim=1)
        return pooled
