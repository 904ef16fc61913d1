"""What a Pipeline makes of a TRANSFORMS list, in words, and of an image, as pictures to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import Normalize, ToPILImage

from sslengine.data.augment.counterparts import COUNTERPARTS, ToFloats
from sslengine.data.augment.pipeline import Pipeline, PipelineStep
from sslengine.data.augment.tensors import CONVERSIONS
from sslengine.data.augment.transform import OnPil, walk
from sslengine.data.decode.decoding import as_rgb
from sslengine.errors import DataError

KNOWN = "known, on images of any kind"
FALLS_BACK = "falls back to PIL"
FLOATS = "floats made here, in the worker"
ON_TENSORS = "on tensors"
ON_LABELS = "on labels"
ON_BYTES = "on bytes, in the worker"
LATER = "after collate, on the device"


@dataclass(frozen=True)
class Part:
    where: str
    what: str
    why: str = ""


def explain(pipeline: Pipeline) -> list[Part]:
    """Return one part for each entry of the list."""
    cut = pipeline.cut
    on_bytes = (
        Part(step.where, ON_LABELS if step.takes_labels else ON_BYTES) for step in cut.on_bytes
    )
    later = (Part(step.where, LATER) for step in cut.waits)
    by_where = {part.where: part for part in (*_explain_images(cut.on_images), *later, *on_bytes)}
    return [by_where[step.where] for step in pipeline.listed]


def _explain_images(steps: Sequence[PipelineStep]) -> Iterator[Part]:
    tensors = False
    for step in steps:
        converts = isinstance(step.transform, ToFloats)
        on_pil = [each for each in walk(step.transform) if isinstance(each, OnPil)]
        if step.takes_labels:
            yield Part(step.where, ON_LABELS)
        elif tensors:
            yield Part(step.where, ON_TENSORS)
        elif converts:
            yield Part(step.where, FLOATS)
        elif on_pil:
            known = type(on_pil[0].named) in COUNTERPARTS
            why = (
                "its arguments are not known" if known else "its class does not say `takes_arrays`"
            )
            yield Part(step.where, FALLS_BACK, why)
        else:
            yield Part(step.where, KNOWN)
        tensors = (converts and not tensors) or (tensors and type(step.named) is not ToPILImage)


def why_floats(steps: Sequence[PipelineStep], image_keys: Sequence[str]) -> str:
    """Say why a list of which nothing waits does not give uint8."""
    if not any(type(step.named) in CONVERSIONS for step in steps):
        return "no ToTensor is among the TRANSFORMS"
    if not image_keys:
        return "the collator does not say that it only moves images (`only_moves`)"
    return "ToTensor is for some images only, or followed by what computes with pixels"


# ---- pictures: before normalisation, as RGB


def pictures_of(image: Any, pipeline: Pipeline) -> Iterator[Image.Image]:
    """Yield a picture, or one of each patch where the image is a tensor of patches."""
    if isinstance(image, Image.Image):
        yield image.convert("RGB")
        return
    if not isinstance(image, Tensor) or image.ndim not in (3, 4):
        raise DataError(
            f"a picture is made of images, and the TRANSFORMS give {type(image).__name__}."
        )
    values = undo_normalize(image.detach().float().cpu(), pipeline)
    for each in values if values.ndim == 4 else [values]:
        yield picture_of(each)


def picture_of(values: Tensor) -> Image.Image:
    """Draw a tensor C x H x W, 0 to 1; other values, as of 16 bits, are scaled to their range."""
    pixels = values.movedim(0, -1).numpy()
    if values.min() < -1 or values.max() > 2:
        return as_rgb(pixels)
    shown = (255 * values.clamp(0, 1)).round().byte().movedim(0, -1).numpy()
    return Image.fromarray(shown[..., :3] if shown.shape[-1] >= 3 else shown[..., 0]).convert("RGB")


def undo_normalize(values: Tensor, pipeline: Pipeline) -> Tensor:
    for step in reversed(pipeline.listed):
        if isinstance(step.named, Normalize):
            mean, std = (torch.tensor(each) for each in (step.named.mean, step.named.std))
            values = values * std.view(-1, 1, 1) + mean.view(-1, 1, 1)
    return values
