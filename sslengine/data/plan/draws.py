"""What a transform draws for an image of a given size, and which operations that comes to.

A draw makes the same calls on the same random streams, in the same order, as the transform
does when it is called; so the plan and the plain list give the same views under one seed.

Transforms of torchvision have their draws here, by exact type: what a subclass changed is not
known. Any other transform may have a method of its own, which returns what a call returns, with
operations in the place of images:

    def draw(self, size: Size) -> list[Op]                       one image
    def draw(self, size: Size) -> list[list[Op]]                 makes_views: for each view
    def draw(self, size: Size) -> tuple[list[Op], label]         makes_label
    def draw(self, size: Size) -> {"data": list[Op], ...}        makes_keys
    def draw(self, sizes: list[Size]) -> list[list[Op]]          takes_all: for each image

`size` is (height, width) of an RGB image. A class that overrides `__call__` and not `draw` does
something that `draw` does not say; then its `draw` is not used. Nor is it where one of the
transform's `parts`, transforms that it hands images on to, has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torchvision import transforms

from sslengine.data.plan.ops import (
    AutoContrast,
    Brightness,
    CenterOnBlack,
    Contrast,
    Crop,
    Equalize,
    FlipLeftRight,
    Grey,
    Hue,
    Invert,
    Op,
    Posterize,
    Saturation,
    Sharpness,
    Size,
    Solarize,
)
from sslengine.data.plan.resized_crop import ResizedCrop
from sslengine.data.plan.torch_stream import as_compared, chance, uniforms

Draw = Callable[[Size], list[Op]]


def draw_of(transform: Any) -> Any:
    """The draw of a transform; None if it has none. (Its form depends on the kind, see above.)"""
    if type(transform) in _TORCHVISION:
        return _TORCHVISION[type(transform)](transform)
    says = _says_what_it_does(type(transform))
    return transform.draw if says and _inner(_parts(transform)) is not None else None


def why_no_draw(transform: Any) -> str:
    """In words, of a transform whose `draw_of` is None."""
    kind = type(transform)
    unknown = [part for part in _parts(transform) if draw_of(part) is None]
    if unknown:
        return f"it applies {type(unknown[0]).__name__}: {why_no_draw(unknown[0])}"
    if kind in _TORCHVISION:
        return "with these arguments the plan does not know it"
    if callable(getattr(kind, "draw", None)) or issubclass(kind, tuple(_TORCHVISION)):
        return "its class changes one that the plan knows, and has no draw of its own"
    return "it has no draw"


def _parts(transform: Any) -> Sequence[Any]:
    """Transforms that this one hands images on to."""
    if isinstance(transform, (transforms.Compose, transforms.RandomApply)):
        return list(transform.transforms)
    parts: Sequence[Any] = getattr(transform, "parts", ())
    return parts


def draw_in_turn(draws: Sequence[Draw], size: Size) -> list[Op]:
    """One transform after another, each on what the one before it makes."""
    ops: list[Op] = []
    for draw in draws:
        for op in draw(size):
            ops.append(op)
            size = op.size(size)
    return ops


def _says_what_it_does(kind: type) -> bool:
    """Is `draw` at least as derived as `__call__` and `forward`?"""
    if not callable(getattr(kind, "draw", None)):
        return False
    defines = next(
        base for base in kind.__mro__ if {"draw", "__call__", "forward"} & vars(base).keys()
    )
    return "draw" in vars(defines)


def _inner(parts: Sequence[Any]) -> list[Draw] | None:
    """The draws of transforms within a transform, if all have one and make one image of one."""
    kinds = ("makes_views", "makes_label", "makes_keys", "takes_all")
    if any(getattr(part, kind, False) for part in parts for kind in kinds):
        return None
    draws = [draw_of(part) for part in parts]
    return None if None in draws else draws


# ---- torchvision: containers


def _compose(transform: transforms.Compose) -> Draw | None:
    draws = _inner(_parts(transform))
    return None if draws is None else partial(draw_in_turn, draws)


def _random_apply(transform: transforms.RandomApply) -> Draw | None:
    draws = _inner(_parts(transform))
    if draws is None:
        return None
    draw = draws[0] if len(draws) == 1 else partial(draw_in_turn, draws)
    return partial(_draw_random_apply, as_compared(transform.p), draw)


def _draw_random_apply(p: float, draw: Draw, size: Size) -> list[Op]:
    return [] if p < chance() else draw(size)


# ---- torchvision: geometry


def _random_crop(transform: transforms.RandomCrop) -> Draw | None:
    pads = transform.padding is not None or transform.pad_if_needed
    return None if pads else partial(_draw_random_crop, transform)


def _draw_random_crop(transform: transforms.RandomCrop, size: Size) -> list[Op]:
    top, left, height, width = transform.get_params(_of_size(size), transform.size)  # type: ignore[arg-type]
    return [Crop(top, left, height, width, to=(height, width))]


def _draw_center_crop(transform: transforms.CenterCrop, size: Size) -> list[Op]:
    height, width = transform.size
    if height > size[0] or width > size[1]:
        return [CenterOnBlack((height, width))]
    # As torchvision rounds them: a half to the even number.
    top, left = round((size[0] - height) / 2.0), round((size[1] - width) / 2.0)
    return [Crop(top, left, height, width, to=(height, width))]


def _resize(transform: transforms.Resize) -> Draw | None:
    return None if transform.max_size is not None else partial(_draw_resize, transform)


def _draw_resize(transform: transforms.Resize, size: Size) -> list[Op]:
    to = _resized(transform.size, size)
    return [] if to == size else [Crop(0, 0, *size, to=to, interpolation=transform.interpolation)]


def _resized(wanted: int | Sequence[int], size: Size) -> Size:
    """One number is for the shorter side; the longer follows, rounded down."""
    numbers = [wanted] if isinstance(wanted, int) else list(wanted)
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    (side,) = numbers
    height, width = size
    if height <= width:
        return side, int(side * width / height)
    return int(side * height / width), side


def _of_size(size: Size) -> Tensor:
    """Stands for an image where only its size is asked for; it has one value in memory."""
    return torch.empty(()).expand(size)


# ---- torchvision: colour


def _color_jitter(transform: transforms.ColorJitter) -> Draw:
    kinds = (Brightness, Contrast, Saturation, Hue)
    ranges = (transform.brightness, transform.contrast, transform.saturation, transform.hue)
    given = [number for number in range(4) if ranges[number] is not None]
    # Neighbours in the stream that are of one range are drawn in one call.
    groups = [
        (*limits, len(list(each))) for limits, each in groupby(tuple(ranges[n]) for n in given)
    ]
    return partial(_draw_color_jitter, [(number, kinds[number]) for number in given], groups)


def _draw_color_jitter(
    kinds: Sequence[tuple[int, Callable[[float], Op]]],
    ranges: Sequence[tuple[float, float, int]],
    size: Size,
) -> list[Op]:
    order = torch.randperm(4).tolist()
    drawn = {number: kind(x) for (number, kind), x in zip(kinds, uniforms(ranges))}
    return [drawn[number] for number in order if number in drawn]


def _grayscale(transform: transforms.Grayscale) -> Draw | None:
    return _draw_grey if transform.num_output_channels == 3 else None


def _draw_grey(size: Size) -> list[Op]:
    return [Grey()]


def _draw_random_solarize(transform: transforms.RandomSolarize, size: Size) -> list[Op]:
    # Of whole numbers, those from 127.5 on are those from 128 on.
    return [Solarize(math.ceil(transform.threshold))] if chance() < transform.p else []


def _sometimes(op: Op) -> Callable[[Any], Draw]:
    """Of a transform that compares tensors; see `_by_chance`."""
    return lambda transform: partial(_draw_by_chance, as_compared(transform.p), op)


def _posterize(transform: transforms.RandomPosterize) -> Draw | None:
    # Whether zero bits are an error is told by Pillow's version.
    known = transform.bits in range(1, 9)
    return partial(_draw_by_chance, transform.p, Posterize(transform.bits)) if known else None


def _sharpness(transform: transforms.RandomAdjustSharpness) -> Draw:
    return partial(_draw_by_chance, transform.p, Sharpness(transform.sharpness_factor))


def _by_chance(op: Op) -> Callable[[Any], Draw]:
    """Of a transform that compares numbers; see `_sometimes`."""
    return lambda transform: partial(_draw_by_chance, transform.p, op)


def _draw_by_chance(p: float, op: Op, size: Size) -> list[Op]:
    return [op] if chance() < p else []


def _by(draw: Callable[[Any, Size], list[Op]]) -> Callable[[Any], Draw]:
    # Partials of functions, for a plan is pickled into every loader worker.
    return lambda transform: partial(draw, transform)


_TORCHVISION: dict[type, Callable[[Any], Draw | None]] = {
    transforms.Compose: _compose,
    transforms.RandomApply: _random_apply,
    transforms.RandomResizedCrop: ResizedCrop.of,
    transforms.RandomCrop: _random_crop,
    transforms.CenterCrop: _by(_draw_center_crop),
    transforms.Resize: _resize,
    transforms.RandomHorizontalFlip: _sometimes(FlipLeftRight()),
    transforms.ColorJitter: _color_jitter,
    transforms.Grayscale: _grayscale,
    transforms.RandomGrayscale: _sometimes(Grey()),
    transforms.RandomSolarize: _by(_draw_random_solarize),
    transforms.RandomPosterize: _posterize,
    transforms.RandomAdjustSharpness: _sharpness,
    transforms.RandomInvert: _by_chance(Invert()),
    transforms.RandomAutocontrast: _by_chance(AutoContrast()),
    transforms.RandomEqualize: _by_chance(Equalize()),
}
