"""What a vision transformer makes of an image: its patches by three principal components, and
where the class token of the last block looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import Block
from torch import Tensor
from torch.nn import functional as F

from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.shown import picture_of, pictures_of
from sslengine.predictor.predictor import Predictor
from sslengine.report.content import Views
from sslengine.report.mapped_images import spread
from sslengine.report.views_of_images import as_uri

IMAGES = 8
PATCHES, ATTENTION = "patches by three components", "attention of the class token"
# Shares of the values that are drawn as 0 and 1.
DARK, BRIGHT = 0.02, 0.98
SEEN = 0.2  # brightness where there is no attention


@torch.no_grad()
def draw_patches(predictor: Predictor) -> list[Views]:
    """Empty for a network without patches."""
    trunk: Any = predictor.trunk
    if "lastPATCH" not in trunk.feature_names:
        return []
    count = len(predictor.dataset)
    numbers = spread(np.arange(count), min(IMAGES, count)).tolist()
    images = torch.stack([predictor.view(predictor.training_image(each)) for each in numbers])
    images = images.to(predictor.device)
    with recorded_attention(trunk) as seen:
        flip = getattr(predictor.model, "flip_channels", False)
        tokens = trunk(images.flip(1) if flip else images, ["lastPATCH"])[0].float().cpu()
    grid = _grid(tokens.shape[1], images)
    panels = [_enlarged(principal_colours(tokens).mT.unflatten(2, grid), images, "nearest")]
    titles = [PATCHES]
    pipeline = Pipeline(predictor.view.entries, "TRANSFORMS")
    shown = [next(pictures_of(each, pipeline)) for each in images]
    for attention in seen:
        heat = attention[:, -tokens.shape[1] :].unflatten(1, grid).unsqueeze(1)
        heat = _enlarged(heat / heat.amax(dim=(1, 2, 3), keepdim=True), images, "bilinear")
        pixels = torch.stack([torch.from_numpy(np.array(each)).movedim(2, 0) for each in shown])
        panels.append(pixels / 255 * (SEEN + (1 - SEEN) * heat))
        titles.append(ATTENTION)
    source = predictor.dataset.sources[0]
    return [
        Views(
            source.relative_path(int(predictor.dataset.rows[number])), as_uri(shown[row]),
            [as_uri(picture_of(each[row])) for each in panels], titles,
        )
        for row, number in enumerate(numbers)
    ]  # fmt: skip


def principal_colours(tokens: Tensor) -> Tensor:
    """N x L x D to N x L x 3, 0 to 1: the first three components of all patches together."""
    rows = tokens.flatten(0, 1).double()
    rows = rows - rows.mean(dim=0)
    axes = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -3:].flip(1)
    largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))
    values = rows @ (axes * largest.sign())  # the sign of an eigenvector has no meaning
    low, high = (values.quantile(share, dim=0) for share in (DARK, BRIGHT))
    colours = ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1).float()
    return colours.view(*tokens.shape[:2], 3)


@contextmanager
def recorded_attention(trunk: Any) -> Iterator[list[Tensor]]:
    """Add images x tokens after the forward pass; nothing where attention is not timm's plain one
    or there is no class token."""
    found: list[Tensor] = []
    block = trunk.blocks[-1] if len(getattr(trunk, "blocks", ())) else None
    attention = getattr(block, "attn", None)
    plain = type(block) is Block and all(
        hasattr(attention, name) for name in ("qkv", "q_norm", "k_norm", "num_heads", "scale")
    )
    if not plain or attention is None or getattr(trunk, "cls_token", None) is None:
        yield found
        return

    def look(module: Any, inputs: tuple[Tensor, ...]) -> None:
        made = module.qkv(inputs[0]).unflatten(-1, (3, module.num_heads, -1))
        query, key, _ = made.permute(2, 0, 3, 1, 4)
        query, key = module.q_norm(query), module.k_norm(key)
        weights = (query[:, :, :1] * module.scale @ key.mT).softmax(dim=-1)
        found.append(weights[:, :, 0].mean(dim=1).float().cpu())

    handle = attention.register_forward_pre_hook(look)
    try:
        yield found
    finally:
        handle.remove()


def _grid(count: int, images: Tensor) -> tuple[int, int]:
    rows = round((count * images.shape[-2] / images.shape[-1]) ** 0.5)
    return rows, count // rows


def _enlarged(values: Tensor, images: Tensor, mode: str) -> Tensor:
    made: Tensor = F.interpolate(values, images.shape[-2:], mode=mode)
    return made
