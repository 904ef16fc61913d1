"""MAE (He et al., 2021): a vision transformer encodes a quarter of an image's patches; a small
decoder reconstructs the rest.

    hidden = a random 75 % of the patches, drawn for each image by `patch_noise_collator`
    tokens = trunk(visible patches)
    predicted = decoder(tokens, with one learned token in place of each hidden patch)
    loss = mean over hidden patches of (predicted - pixels)^2

NORMALIZE_PIXELS subtracts each patch's own mean and divides by its own standard deviation.
Position embeddings are fixed sines and cosines, also in `vision_transformer`; timm's networks learn
theirs. The model computes its own losses (`model_train_step`); its trained trunk can be used like
any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.utils import make_grid

from sslengine.config.ranges import above, at_least
from sslengine.config.requirements import TRUNKS
from sslengine.distributed.ranks import is_primary
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook, Task
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions
from sslengine.models.trunks.patches import (
    SinePositions,
    fix_positions,
    join_patches,
    patch_grid,
    split_patches,
)
from sslengine.models.trunks.vision_transformer import VisionTransformer
from sslengine.precision import as_full
from sslengine.registry import register_model


@dataclass
class MaeOptions:
    # Share of the patches that are hidden from the trunk.
    MASK_RATIO: float = above(0, 0.75, below=1)
    # The target is a patch's pixels, minus their mean, divided by their standard deviation.
    NORMALIZE_PIXELS: bool = True
    # Width of a token in the decoder.
    DECODER_DIM: int = at_least(1, 512)
    # Blocks of the decoder.
    DECODER_LAYERS: int = at_least(1, 8)
    # Attention heads of each of its blocks.
    DECODER_HEADS: int = at_least(1, 16)
    # Epochs between two pictures of inputs, visible patches and reconstructions; 0: none.
    PICTURES_EVERY_NUM_EPOCH: int = at_least(0, 1)

    def check(self) -> Iterator[str]:
        if self.DECODER_DIM % 4 or self.DECODER_DIM % self.DECODER_HEADS:
            yield (
                f"DECODER_DIM: {self.DECODER_DIM} must be a multiple of 4 and of DECODER_HEADS, "
                f"{self.DECODER_HEADS}."
            )


@register_model("mae", options=MaeOptions)
class MaskedAutoencoder(nn.Module):
    leaves_patches_out: ClassVar[bool] = True  # the trunk must be able to

    def __init__(self, options: MaeOptions, model: ModelOptions) -> None:
        super().__init__()
        self.options = options
        self.trunk = _trunk(model)
        grid = self.trunk.patch_embed.grid_size
        self.decoder = PatchDecoder(options, self.trunk, grid)
        self.apply(_initialise)
        for layer in self.trunk.patch_embed.modules():
            if isinstance(layer, nn.Conv2d):  # as a linear layer on patches
                nn.init.xavier_uniform_(layer.weight.view(layer.out_channels, -1))
        for token in (self.trunk.cls_token, self.decoder.hidden_token):
            if token is not None:  # the trunk may have no class token
                nn.init.normal_(token, std=0.02)
        if isinstance(self.trunk, VisionTransformer) and self.trunk.pos_embed is not None:
            fix_positions(self.trunk, grid[0])

    def forward(self, data: Tensor, mode: str = "tensor", noise: Any = None, **_: Any) -> Any:
        """data: images; noise: see `reconstruct`. Labels in the batch are ignored."""
        if mode == "tensor":
            return self.trunk(data)[0]
        reconstructed, hidden = self.reconstruct(data, self._noise(data, noise))
        if mode == "predict":
            return reconstructed
        return {"loss": self.loss(data, reconstructed, hidden)}, reconstructed.detach(), hidden

    def val_step(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """The losses in test phases: the same loss in eval mode."""
        losses: dict[str, Tensor] = self(**data, mode="loss")[0]
        return losses

    def hooks(self) -> list[Hook]:
        frequency = self.options.PICTURES_EVERY_NUM_EPOCH
        return [SavePictures(self.picture, frequency)] if frequency else []

    def reconstruct(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(N x L x P: pixels of each patch, N x L: 1 where the patch was hidden).

        noise, N x L: the patches with the lowest noise in each image are visible.
        """
        order, count = noise.argsort(dim=1), noise.shape[1]
        kept = int(count * (1 - self.options.MASK_RATIO))
        if not 0 < kept < count:
            raise ConfigError(
                f"config.MODEL.mae.MASK_RATIO: {self.options.MASK_RATIO:g} of {count} patches "
                f"leaves {kept} visible; use smaller patches or another ratio."
            )
        shown = order[:, :kept]
        tokens = self.trunk(images, ["lastBLK"], shown=shown)[0]
        grid = patch_grid(images, self.trunk.patch_size)
        reconstructed = self.decoder(tokens, order.argsort(dim=1), grid)
        return reconstructed, torch.ones_like(noise).scatter(1, shown, 0.0)

    def loss(self, images: Tensor, reconstructed: Tensor, hidden: Tensor) -> Tensor:
        target = split_patches(images, self.trunk.patch_size)
        if self.options.NORMALIZE_PIXELS:
            mean, deviation = _statistics(target)
            target = (target - mean) / deviation
        made, wanted = as_full((reconstructed, target))
        error = F.mse_loss(made, wanted, reduction="none").mean(-1)
        return (error * hidden).sum() / hidden.sum()

    @torch.no_grad()
    def picture(self, images: Tensor, reconstructed: Tensor, hidden: Tensor) -> Tensor:
        """N x 3 x C x H x W: each image, its visible patches, and its reconstruction."""
        pixels = split_patches(images, self.trunk.patch_size)
        if self.options.NORMALIZE_PIXELS:
            mean, deviation = _statistics(pixels)
            reconstructed = reconstructed * deviation + mean
        away = hidden.unsqueeze(-1)
        grey = pixels.mean(dim=(1, 2), keepdim=True).expand_as(pixels)
        panels = (pixels, torch.lerp(pixels, grey, away), torch.lerp(pixels, reconstructed, away))
        size = self.trunk.patch_size
        return torch.stack([join_patches(each, size, images.shape) for each in panels], dim=1)

    def _noise(self, images: Tensor, given: Tensor | None) -> Tensor:
        """Return the collator's noise. Without it each rank draws, in test phases from a generator
        with a fixed seed, so the training's is not advanced."""
        rows, columns = patch_grid(images, self.trunk.patch_size)
        shape, device = (len(images), rows * columns), images.device
        if given is not None and given.shape != shape:
            where = "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size"
            raise ConfigError(f"{where}: it is not that of the trunk, {self.trunk.patch_size}.")
        own = None if self.training else torch.Generator(device).manual_seed(0)
        return torch.rand(shape, generator=own, device=device) if given is None else given


class PatchDecoder(nn.Module):
    def __init__(self, options: MaeOptions, trunk: Any, grid: tuple[int, int]) -> None:
        """grid: rows and columns of patches in an image of the configured size."""
        super().__init__()
        width = options.DECODER_DIM
        self.positions = SinePositions(grid, width)
        self.first = trunk.num_prefix_tokens  # number of tokens before the patches
        norm: Any = partial(nn.LayerNorm, eps=1e-6)
        self.embed = nn.Linear(trunk.embed_dim, width)
        self.hidden_token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.Sequential(
            *(
                Block(width, options.DECODER_HEADS, qkv_bias=True, norm_layer=norm)
                for _ in range(options.DECODER_LAYERS)
            )
        )
        self.norm = norm(width)
        channels = next(trunk.patch_embed.parameters()).shape[1]
        self.pixels = nn.Linear(width, trunk.patch_size**2 * channels)

    def forward(self, tokens: Tensor, places: Tensor, grid: tuple[int, int]) -> Tensor:
        """places, N x L: the position of each patch in the order: visible, then hidden.

        Under autocast, tokens between blocks stay in float32, as in the authors' code.
        """
        tokens = self.embed(tokens).to(self.hidden_token.dtype)
        first, shown = tokens[:, : self.first], tokens[:, self.first :]
        missing = places.shape[1] - shown.shape[1]
        hidden = self.hidden_token.expand(len(shown), missing, -1)
        patches = torch.cat([shown, hidden], dim=1)
        patches = patches.gather(1, places.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))
        reconstructed = self.blocks(torch.cat([first, patches + self.positions(grid)], dim=1))
        return self.pixels(self.norm(reconstructed))[:, self.first :]  # type: ignore[no-any-return]


def _trunk(model: ModelOptions) -> Any:
    trunk: Any = build_trunk(model)
    if "shown" not in trunk.extra_inputs:
        raise ConfigError(
            f"config.MODEL.TRUNK.NAME: mae needs {TRUNKS}; {model.TRUNK.NAME} cannot leave patches "
            f"out."
        )
    if trunk.embed_dim % 4:
        raise ConfigError(
            f"config.MODEL.TRUNK.VISION_TRANSFORMERS.HIDDEN_DIM: mae needs a multiple of 4, got "
            f"{trunk.embed_dim}."
        )
    return trunk


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each patch's values."""
    mean, variance = patches.mean(-1, keepdim=True), patches.var(-1, keepdim=True)
    return mean, (variance + 1e-6).sqrt()


class SavePictures(Hook):
    """Put a picture once every so many epochs: a row for each of the last batch's first images.

    draw: makes of images, `last_batch.vis_preds` and `last_batch.vis_masks` N x K x C x H x W:
        K panels for each image.
    """

    name = "pictures of mae"

    def __init__(self, draw: Callable[..., Tensor], every: int, rows: int = 8) -> None:
        self.draw, self.every, self.rows = draw, every, rows

    def on_phase_end(self, task: Task) -> None:
        batch, phase = task.last_batch, task.phase
        ends_epoch = phase.last_step == task.train_feed.steps_per_epoch if task.train else False
        if not ends_epoch or (phase.epoch + 1) % self.every or not is_primary():
            return
        chosen = (batch.sample["input"]["data"], batch.vis_preds, batch.vis_masks)
        panels = self.draw(*(each[: self.rows] for each in chosen)).float()
        task.storage.put_image("mae", join_panels(panels))


def join_panels(panels: Tensor) -> Tensor:
    """Join panels to one picture, 0 to 1. Each row is scaled by its first panel, to compare."""
    first = panels[:, :1].flatten(1)
    low, high = first.amin(1), first.amax(1)
    shape = (-1, *[1] * (panels.ndim - 1))
    scaled = (panels - low.view(shape)) / (high - low).clamp_min(1e-6).view(shape)
    images = scaled.clamp(0, 1).flatten(0, 1)
    larger = max(1, 96 // images.shape[-2])  # small images are hard to see
    images = images.repeat_interleave(larger, dim=-2).repeat_interleave(larger, dim=-1)
    with torch.no_grad():
        return make_grid(images, nrow=panels.shape[1], padding=2, pad_value=1.0)
