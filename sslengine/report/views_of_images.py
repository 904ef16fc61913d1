"""What a network gets of some training images, and what it makes of them.

Views are those of the first epochs, drawn by the run's seed as its loader draws them, and shown as
they are before normalisation. Of a method that hides patches there is the input of a step, and what
the model reconstructs; of a transformer its patches by three principal components, and where the
class token of the last block looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from timm.models.vision_transformer import Block
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.options import RunOptions
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.tensors import picture_of, pictures_of, undo_normalize
from sslengine.data.batch.collators import image_keys
from sslengine.data.decode.decoding import as_rgb
from sslengine.data.loading.dataset import SSLDataset, collate_seeded
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.engine.step import single_input_sample
from sslengine.errors import DataError
from sslengine.losses.options import LossOptions
from sslengine.methods.base import Step
from sslengine.methods.whole import Batch
from sslengine.predictor.predictor import Predictor
from sslengine.registry import COLLATORS, LOSSES
from sslengine.report.content import Views
from sslengine.report.parts import data_uri, spread

IMAGES, OF_NETWORK, AT_LEAST, AT_MOST = 6, 8, 4, 12
LARGEST = 160  # side of a picture in the page, in pixels
INPUT, MASK, MADE = "input", "hidden patches", "reconstruction"
PATCHES, ATTENTION = "patches by three components", "attention of the class token"
GREY, SEEN = 0.5, 0.2  # of hidden patches; brightness where there is no attention
DARK, BRIGHT = 0.02, 0.98  # shares of the values that are drawn as 0 and 1


def open_training(resolved: Resolved) -> SSLDataset:
    data = read(resolved.config, DataOptions)
    keys = image_keys(COLLATORS.get(data.TRAIN.COLLATE_FUNCTION))
    seed = read(resolved.config, RunOptions).SEED_VALUE
    dataset = SSLDataset(
        data.TRAIN, "TRAIN", seed, data.AUGMENT_BACKEND, keys, hold_out=data.HOLD_OUT
    )
    if dataset.stream is not None:
        raise DataError("the images are a stream, of which no single one can be read")
    return dataset


def draw_views(dataset: SSLDataset, options: SplitOptions) -> list[Views]:
    pipeline, found = Pipeline(options.TRANSFORMS, "TRANSFORMS"), []
    for number in spread(np.arange(len(dataset)), IMAGES).tolist():
        views: list[Image.Image] = []
        for epoch in range(AT_LEAST):
            if len(views) < AT_LEAST:
                sample = dataset[epoch, number]
                views += [each for view in sample["data"] for each in pictures_of(view, pipeline)]
        found.append(_views(dataset, int(sample["data_idx"][0]), views[:AT_MOST]))
    return found


def _views(
    dataset: SSLDataset, number: int, pictures: Sequence[Image.Image], titles: Sequence[str] = ()
) -> Views:
    """Pictures of several sizes keep their relation."""
    source, row = dataset.sources[0], int(dataset.rows[number])
    (original,), views = _encode_uris([as_rgb(source.image(row))]), _encode_uris(pictures)
    return Views(source.relative_path(row), original, views, titles)


def _encode_uris(pictures: Sequence[Image.Image]) -> list[str]:
    parts = max(1.0, max(max(each.size) for each in pictures) / LARGEST)
    small = (ImageOps.scale(each, 1 / parts, Image.Resampling.BOX) for each in pictures)
    return [data_uri(each) for each in (small if parts > 1 else pictures)]


# ---- hidden patches


def draw_masked(
    dataset: SSLDataset, options: SplitOptions, predictor: Predictor | None
) -> list[Views]:
    """Empty where no patch is hidden. predictor: None: what is reconstructed is not drawn."""
    numbers = spread(np.arange(len(dataset)), IMAGES).tolist()
    samples = dataset.__getitems__([(0, number) for number in numbers])
    collate = COLLATORS.maker(options.COLLATE_FUNCTION, options.COLLATE_FUNCTION_PARAMS)
    batch, finish = collate_seeded(collate, samples), dataset.finish_on(torch.device("cpu"))
    if finish is not None:
        batch = finish.finish_batch(batch)
    if not isinstance(batch, dict):
        return []
    panels = None if predictor is None else _reconstruct(predictor, batch, options)
    if panels is None:
        panels = _hide(batch, options, len(numbers))
    if panels is None:
        return []
    titles = [INPUT, MASK, MADE][: panels.shape[1]]
    rows = ([picture_of(each) for each in row] for row in panels)
    return [_views(dataset, each, row, titles) for each, row in zip(numbers, rows)]


@torch.no_grad()
def _reconstruct(
    predictor: Predictor, batch: Mapping[str, Any], options: SplitOptions
) -> Tensor | None:
    """Images x panels x C x H x W, if the method draws what it makes (`picture`)."""
    name = read(predictor.config, LossOptions).name
    if not name or not hasattr(LOSSES.get(name), "picture"):
        return None
    method: Any = predictor.open_method()
    sample = single_input_sample(batch, options.INPUT_KEY_NAMES, options.TARGET_KEY_NAMES)
    method(Batch(sample), Step.alone(train=False))
    panels = method.picture(IMAGES).float()
    return undo_normalize(panels, Pipeline(options.TRANSFORMS, "TRANSFORMS")).clamp(0, 1)


def _hide(batch: Mapping[str, Any], options: SplitOptions, count: int) -> Tensor | None:
    """Show each image's most hidden view, without and with its hidden pixels grey."""
    held = {key: _join(each[0]) for key, each in batch.items() if isinstance(each, list) and each}
    name = next((each for each in ("mask", "shown") if each in held), "")
    joined = (torch.cat(each) if isinstance(each, list) else each for each in held.values())
    images = [each for each in joined if isinstance(each, Tensor) and each.ndim == 4]
    # The largest; of several of a size the last: those before it are targets.
    fits = sorted((each for each in images if name and len(each) == len(held[name])),
                  key=lambda each: each.shape[-1])  # fmt: skip
    if not fits:
        return None
    given, views = held[name], fits[-1]
    if name == "shown":
        side = options.COLLATE_FUNCTION_PARAMS.get("patch_size", 16)  # as the collators have it
        patches = torch.ones(len(views), (views.shape[-2] // side) * (views.shape[-1] // side))
        given = patches.scatter(1, given, 0.0)
    hidden = given.reshape(len(views), 1, *_grid(given[0].numel(), views)).float()
    # Views come one after the other for all images.
    most = hidden.mean(dim=(1, 2, 3)).unflatten(0, (-1, count)).argmax(dim=0)
    rows = most * count + torch.arange(count)
    shown = undo_normalize(views[rows].float(), Pipeline(options.TRANSFORMS, "TRANSFORMS"))
    away = F.interpolate(hidden[rows], views.shape[-2:])
    return torch.stack([shown, torch.lerp(shown, torch.tensor(GREY), away)], dim=1)


def _join(value: Any) -> Any:
    """Join a list of views of one size; anything else stays as it is."""
    views = isinstance(value, list) and all(isinstance(each, Tensor) for each in value)
    same = views and len({each.shape for each in value}) == 1
    return torch.cat(value) if same else value


def _grid(count: int, images: Tensor) -> tuple[int, int]:
    rows = round((count * images.shape[-2] / images.shape[-1]) ** 0.5)
    return rows, count // rows


# ---- patches of a transformer


@torch.no_grad()
def draw_patches(predictor: Predictor) -> list[Views]:
    """Empty for a network without patches."""
    trunk: Any = predictor.trunk
    if "lastPATCH" not in trunk.feature_names:
        return []
    numbers = spread(np.arange(len(predictor.dataset)), OF_NETWORK).tolist()
    images = torch.stack([predictor.view(predictor.training_image(each)) for each in numbers])
    images = images.flip(1) if getattr(predictor.model, "flip_channels", False) else images
    with recorded_attention(trunk) as seen:
        tokens = trunk(images.to(predictor.device), ["lastPATCH"])[0].float().cpu()
    size, grid = images.shape[-2:], _grid(tokens.shape[1], images)
    pipeline = Pipeline(predictor.view.entries, "TRANSFORMS")
    inputs = [next(pictures_of(each, pipeline)) for each in images]
    colours = F.interpolate(principal_colours(tokens).mT.unflatten(2, grid), size)
    rows = [[given, picture_of(each)] for given, each in zip(inputs, colours)]
    for attention in seen:
        heat = attention[:, -tokens.shape[1] :].unflatten(1, grid).unsqueeze(1)
        heat = F.interpolate(heat / heat.amax(dim=(1, 2, 3), keepdim=True), size, mode="bilinear")
        for row, light in zip(rows, SEEN + (1 - SEEN) * heat):
            pixels = torch.from_numpy(np.array(row[0])).movedim(2, 0) / 255
            row.append(picture_of(pixels * light))
    titles = [INPUT, PATCHES, ATTENTION][: len(rows[0])]
    return [_views(predictor.dataset, each, row, titles) for each, row in zip(numbers, rows)]


def principal_colours(tokens: Tensor) -> Tensor:
    """N x L x D to N x L x 3, 0 to 1: the first three components of all patches together."""
    rows = tokens.flatten(0, 1).double()
    rows = rows - rows.mean(dim=0)
    axes = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -3:].flip(1)
    largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))
    values = rows @ (axes * largest.sign())  # the sign of an eigenvector has no meaning
    low, high = (values.quantile(share, dim=0) for share in (DARK, BRIGHT))
    colours: Tensor = ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return colours.float().view(len(tokens), -1, 3)


@contextmanager
def recorded_attention(trunk: Any) -> Iterator[list[Tensor]]:
    """Add images x tokens after the forward pass, of timm's plain blocks with a class token."""
    found: list[Tensor] = []
    block = trunk.blocks[-1] if len(getattr(trunk, "blocks", ())) else None
    if type(block) is not Block or getattr(trunk, "cls_token", None) is None:
        yield found
        return

    def look(module: Any, inputs: tuple[Tensor, ...]) -> None:
        made = module.qkv(inputs[0]).unflatten(-1, (3, module.num_heads, -1))
        query, key, _ = made.permute(2, 0, 3, 1, 4)
        query, key = module.q_norm(query), module.k_norm(key)
        weights = (query[:, :, :1] * module.scale @ key.mT).softmax(dim=-1)
        found.append(weights[:, :, 0].mean(dim=1).float().cpu())

    handle = block.attn.register_forward_pre_hook(look)
    try:
        yield found
    finally:
        handle.remove()
