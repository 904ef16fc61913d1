"""What a network gets of some training images: their views, and which patches are hidden.

Views are those of the first epochs, drawn by the run's seed as its loader draws them, and shown as
they are before normalisation.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.options import RunOptions
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.shown import as_before_normalize, picture_of, pictures_of
from sslengine.data.batch.collators import image_keys
from sslengine.data.decode.files import as_rgb
from sslengine.data.loading.dataset import SSLDataset, collate_seeded
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.errors import DataError
from sslengine.registry import COLLATORS
from sslengine.report.content import Views
from sslengine.report.mapped_images import spread
from sslengine.report.thumbnails import data_uri, encode
from sslengine.train_steps.samples import single_input_sample

IMAGES, AT_LEAST, AT_MOST = 6, 4, 12
LARGEST = 160  # side of a picture in the page, in pixels
HIDDEN = 0.5  # grey
INPUT, MASK, MADE = "input", "hidden patches", "reconstruction"


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
    pipeline = Pipeline(options.TRANSFORMS, "TRANSFORMS")
    found = []
    for number in _numbers(dataset):
        views: list[Image.Image] = []
        for epoch in range(AT_LEAST):
            if len(views) < AT_LEAST:
                sample = dataset[epoch, number]
                views += [each for view in sample["data"] for each in pictures_of(view, pipeline)]
        name, original = _original(dataset, int(sample["data_idx"][0]))
        found.append(Views(name, as_uri(original), _at_one_scale(views[:AT_MOST])))
    return found


def draw_masked(dataset: SSLDataset, options: SplitOptions, model: nn.Module | None) -> list[Views]:
    """Empty where no patch is hidden. model: in eval mode, for what it reconstructs."""
    pipeline = Pipeline(options.TRANSFORMS, "TRANSFORMS")
    numbers = _numbers(dataset)
    batch = _batch(dataset, options, numbers)
    if not isinstance(batch, dict):
        return []
    panels = None if model is None else reconstruct(model, batch, options)
    titles = [INPUT, MASK, MADE]
    if panels is None:
        panels, titles = _masked(batch, options, len(numbers)), titles[:2]
    if panels is None:
        return []
    found = []
    for number, row in zip(numbers, panels):
        shown = [picture_of(_in_view(each, pipeline)) for each in row]
        name, original = _original(dataset, number)
        found.append(Views(name, as_uri(original), _at_one_scale(shown), titles))
    return found


def _in_view(values: Tensor, pipeline: Pipeline) -> Tensor:
    return as_before_normalize(values.detach().float().cpu(), pipeline).clamp(0, 1)


def _numbers(dataset: SSLDataset) -> list[int]:
    chosen: list[int] = spread(np.arange(len(dataset)), min(IMAGES, len(dataset))).tolist()
    return chosen


def _original(dataset: SSLDataset, number: int) -> tuple[str, Image.Image]:
    source, row = dataset.sources[0], int(dataset.rows[number])
    return source.relative_path(row), as_rgb(source.image(row))


def _batch(dataset: SSLDataset, options: SplitOptions, numbers: Sequence[int]) -> Any:
    """What a step of training gets of these images."""
    samples = dataset.__getitems__([(0, number) for number in numbers])
    collate = COLLATORS.maker(options.COLLATE_FUNCTION, options.COLLATE_FUNCTION_PARAMS)
    batch = collate_seeded(collate, samples)
    arrival = dataset.arrival(torch.device("cpu"))
    return batch if arrival is None else arrival.on_device(arrival.on_host(batch))


@torch.no_grad()
def reconstruct(model: nn.Module, batch: Mapping[str, Any], options: SplitOptions) -> Tensor | None:
    """Images x panels x C x H x W, if the model or a head of it draws its output (`picture`)."""
    drawer: Any = next((each for each in model.modules() if hasattr(each, "picture")), None)
    if drawer is None:
        return None
    inputs = single_input_sample(batch, options.INPUT_KEY_NAMES, options.TARGET_KEY_NAMES)["input"]
    if drawer is model:
        _, made, hidden = model(**inputs, mode="loss")
    else:
        made, hidden = model(inputs)[0], inputs["mask"]
    panels: Tensor = drawer.picture(inputs["data"], made, hidden)
    return panels


def _masked(batch: Mapping[str, Any], options: SplitOptions, count: int) -> Tensor | None:
    """Of each image the view of which most is hidden, and that with the hidden patches grey."""
    held = {key: each[0] for key, each in batch.items() if isinstance(each, list) and each}
    for images, hidden in _hidden(held, options):
        share = hidden.flatten(1).float().mean(dim=1)
        # Views come one after the other for all images.
        most = share.unflatten(0, (-1, count)).argmax(dim=0)
        rows = most * count + torch.arange(count)
        views = images[rows]
        away = F.interpolate(hidden[rows].unsqueeze(1).float(), views.shape[-2:])
        grey = views.mean(dim=(1, 2, 3), keepdim=True).expand_as(views)
        return torch.stack([views, torch.lerp(views, grey, away)], dim=1)
    return None


def _hidden(held: Mapping[str, Any], options: SplitOptions) -> Iterator[tuple[Tensor, Tensor]]:
    """Images of the batch, and which of their patches are hidden: rows x columns."""
    images = [each for each in held.values() if isinstance(each, Tensor) and each.ndim == 4]
    images.sort(key=lambda each: each.shape[-1])  # of one size the last: before it are targets
    for name in ("mask", "shown"):
        given = held.get(name)
        fits = [each for each in images if given is not None and len(each) == len(given)]
        if not fits or given is None:
            continue
        height, width = fits[-1].shape[-2:]
        if name == "shown":
            side = _patch_size(options)
            grid = (height // side, width // side)
            mask = torch.ones(len(given), grid[0] * grid[1], dtype=torch.bool)
            given = mask.scatter(1, given, False)
        else:
            count = given[0].numel()
            rows = round((count * height / width) ** 0.5)
            grid = (rows, count // rows)
        yield fits[-1], given.reshape(-1, *grid)


def _patch_size(options: SplitOptions) -> int:
    collator = COLLATORS.get(options.COLLATE_FUNCTION)
    default = inspect.signature(collator).parameters["patch_size"].default
    return int(options.COLLATE_FUNCTION_PARAMS.get("patch_size", default))


def as_uri(picture: Image.Image, factor: float = 0.0) -> str:
    """factor: on both sides; 0: as small as the page needs it."""
    factor = factor or min(1.0, LARGEST / max(picture.size))
    if factor != 1:
        size = (max(1, round(factor * each)) for each in picture.size)
        picture = picture.resize((next(size), next(size)), Image.Resampling.BOX)
    return data_uri(encode(picture))


def _at_one_scale(views: Sequence[Image.Image]) -> list[str]:
    """Views of several sizes keep their relation."""
    largest = max(max(each.size) for each in views)
    return [as_uri(each, min(1.0, LARGEST / largest)) for each in views]
