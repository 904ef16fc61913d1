"""MAE (He et al., 2021): a vision transformer encodes a quarter of an image's patches; a small
decoder reconstructs the rest.

    hidden = a random 75 % of the patches, drawn for each image by `patch_noise_collator`
    tokens = trunk(visible patches)
    predicted = decoder(tokens, with one learned token in place of each hidden patch)
    loss = mean over hidden patches of (predicted - pixels)^2

`normalize_pixels` subtracts each patch's own mean and divides by its own standard deviation.
Position embeddings are fixed sines and cosines, also in `vision_transformer`; timm's networks learn
theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.ranges import above, at_least
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook
from sslengine.methods.base import Method, Step
from sslengine.methods.pictures import SavePictures, panels_of
from sslengine.methods.whole import Batch
from sslengine.models.trunks.patches import (
    Grid,
    SinePositions,
    fix_positions,
    join_patches,
    patch_grid,
    split_patches,
)
from sslengine.models.trunks.tokens import select
from sslengine.models.trunks.vision_transformer import VisionTransformer
from sslengine.models.view_trunk import ViewTrunk
from sslengine.registry import register_loss

NAME = "mae_loss"


def width_problems(prefix: str, width: int, heads: int) -> Iterator[str]:
    """Yield what is wrong with the options of HiddenPatches, whose names begin with the prefix."""
    if width % 4 or width % heads:
        yield f"{prefix}_dim: {width} must be a multiple of 4 and of {prefix}_heads, {heads}."


@dataclass
class MaeOptions:
    # Share of the patches that are hidden from the trunk.
    mask_ratio: float = above(0, 0.75, below=1)
    # The target is a patch's pixels, minus their mean, divided by their standard deviation.
    normalize_pixels: bool = True
    # Width of a token in the decoder.
    decoder_dim: int = at_least(1, 512)
    # Blocks of the decoder.
    decoder_layers: int = at_least(1, 8)
    # Attention heads of each of its blocks.
    decoder_heads: int = at_least(1, 16)
    # Epochs between two pictures of inputs, visible patches and reconstructions; 0: none.
    pictures_every_num_epoch: int = at_least(0, 1)

    def check(self) -> Iterator[str]:
        yield from width_problems("decoder", self.decoder_dim, self.decoder_heads)


@register_loss(
    NAME,
    options=MaeOptions,
    collators=("default_collate", "patch_noise_collator"),
    trunk_input="shown",
)
class MaeLoss(Method):
    earlier_names: ClassVar[dict[str, str]] = {
        "decoder.pixels.": "decoder.project.", "decoder.": "decoder.",
    }  # fmt: skip

    def __init__(self, options: MaeOptions, trunk: ViewTrunk) -> None:
        super().__init__()
        trunk.take("shown")
        network: Any = trunk.trunk
        self.options, self.trunk, self.patch_size = options, trunk, network.patch_size
        self.decoder = PatchDecoder(options, trunk)
        network.apply(_initialise)
        self.decoder.apply(_initialise)
        for layer in network.patch_embed.modules():
            if isinstance(layer, nn.Conv2d):  # as a linear layer on patches
                _fill_xavier(layer.weight)
        for token in (network.cls_token, self.decoder.hidden_token):
            if token is not None:  # the trunk may have no class token
                token.data.copy_(nn.init.normal_(torch.empty(token.shape), std=0.02))
        if isinstance(network, VisionTransformer) and network.pos_embed is not None:
            fix_positions(network, network.patch_embed.grid_size[0])
        self._painted: tuple[Tensor, ...] = ()

    def forward(self, batch: Batch, step: Step) -> Tensor:
        images = batch.views[0]
        made, hidden = self.reconstruct(images, self._noise(images, batch.sample.get("noise")))
        self._painted = images, made.detach(), hidden
        target = split_patches(images, self.patch_size)
        if self.options.normalize_pixels:
            mean, deviation = _statistics(target)
            target = (target - mean) / deviation
        error = F.mse_loss(made, target, reduction="none").mean(-1)
        return (error * hidden).sum() / hidden.sum()

    def hooks(self) -> list[Hook]:
        frequency = self.options.pictures_every_num_epoch
        return [SavePictures(self.picture, frequency)] if frequency else []

    def reconstruct(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(N x L x P: pixels of each patch, N x L: 1 where the patch was hidden).

        noise, N x L: the patches with the lowest noise in each image are visible.
        """
        order, count = noise.argsort(dim=1), noise.shape[1]
        kept = int(count * (1 - self.options.mask_ratio))
        if not 0 < kept < count:
            raise ConfigError(
                f"config.LOSS.{NAME}.mask_ratio: {self.options.mask_ratio:g} of {count} patches "
                f"leaves {kept} visible; use smaller patches or another ratio."
            )
        shown = order[:, :kept]
        tokens = self.trunk(images, ["lastBLK"], shown=shown)["lastBLK"]
        made = self.decoder(tokens, order.argsort(dim=1), patch_grid(images, self.patch_size))
        return made, torch.ones_like(noise).scatter(1, shown, 0.0)

    @torch.no_grad()
    def picture(self, rows: int) -> Tensor:
        """Draw the first images of the last batch, as `panels_of`."""
        images, made, hidden = (each[:rows] for each in self._painted)
        if self.options.normalize_pixels:
            mean, deviation = _statistics(split_patches(images, self.patch_size))
            made = made * deviation + mean
        join = partial(join_patches, size=self.patch_size, shape=images.shape)
        return panels_of(images, join(made), join(hidden.unsqueeze(-1).expand_as(made)))

    def _noise(self, images: Tensor, given: Tensor | None) -> Tensor:
        """Return the collator's noise. Without it each rank draws, in test phases from a generator
        with a fixed seed, so the training's is not advanced."""
        rows, columns = patch_grid(images, self.patch_size)
        shape, device = (len(images), rows * columns), images.device
        if given is not None and given.shape != shape:
            where = "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size"
            raise ConfigError(f"{where}: it is not that of the trunk, {self.patch_size}.")
        own = None if self.training else torch.Generator(device).manual_seed(0)
        return torch.rand(shape, generator=own, device=device) if given is None else given


class HiddenPatches(nn.Module):
    """Layers of a narrow transformer that fills in hidden patches: one learned token for these, and
    fixed positions for all. I-JEPA's predictor has them too."""

    def __init__(self, trunk: ViewTrunk, width: int, layers: int, heads: int, outputs: int) -> None:
        """Make them for tokens of the trunk. outputs: how many numbers for each token."""
        super().__init__()
        network: Any = trunk.trunk
        norm: Any = partial(nn.LayerNorm, eps=1e-6)
        self.positions = SinePositions(network.patch_embed.grid_size, width)
        self.embed = nn.Linear(network.embed_dim, width)
        self.hidden_token = nn.Parameter(torch.zeros(1, 1, width))
        blocks = (Block(width, heads, qkv_bias=True, norm_layer=norm) for _ in range(layers))
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm(width)
        self.project = nn.Linear(width, outputs)


class PatchDecoder(HiddenPatches):
    def __init__(self, options: MaeOptions, trunk: ViewTrunk) -> None:
        network: Any = trunk.trunk
        pixels = network.patch_size**2 * (network.in_chans or 3)
        super().__init__(
            trunk, options.decoder_dim, options.decoder_layers, options.decoder_heads, pixels
        )
        self.first = network.num_prefix_tokens  # number of tokens before the patches

    def forward(self, tokens: Tensor, places: Tensor, grid: Grid) -> Tensor:
        """places, N x L: the position of each patch in the order: visible, then hidden.

        Under autocast, tokens between blocks stay in float32, as in the authors' code.
        """
        tokens = self.embed(tokens).to(self.hidden_token.dtype)
        first, shown = tokens[:, : self.first], tokens[:, self.first :]
        hidden = self.hidden_token.expand(len(shown), places.shape[1] - shown.shape[1], -1)
        patches = select(torch.cat([shown, hidden], dim=1), places) + self.positions(grid)
        made = self.blocks(torch.cat([first, patches], dim=1))
        return self.project(self.norm(made))[:, self.first :]  # type: ignore[no-any-return]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        _fill_xavier(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _fill_xavier(weight: Tensor) -> None:
    """Draw as for a linear layer; on the CPU: on each device the same numbers."""
    drawn = nn.init.xavier_uniform_(torch.empty(len(weight), weight[0].numel()))
    weight.data.copy_(drawn.view(weight.shape))


def _statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each patch's values."""
    mean, variance = patches.mean(-1, keepdim=True), patches.var(-1, keepdim=True)
    return mean, (variance + 1e-6).sqrt()
