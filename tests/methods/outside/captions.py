"""An image finds its caption among those of all images."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sslengine as ssl


class Captions(ssl.Method):
    def __init__(
        self, trunk: ssl.ViewTrunk, words: int, dim: int = 128, temperature: float = 0.1
    ) -> None:
        super().__init__()
        self.trunk, self.temperature = trunk, temperature
        self.image, self.text = ssl.mlp(trunk.width, dim), nn.Linear(words, dim)

    def forward(self, batch: ssl.Batch, step: ssl.Step) -> Tensor:
        images = F.normalize(self.image(self.trunk(batch.views)), dim=-1)  # views x images x dim
        captions, start = ssl.gather(F.normalize(self.text(batch["caption_vector"]), dim=-1))
        own = torch.arange(start, start + images.shape[1], device=images.device)
        logits = images @ captions.T / self.temperature
        return F.cross_entropy(logits.flatten(0, 1), own.repeat(len(images)))
