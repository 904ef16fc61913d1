"""Images that are drawn by number, without a disk or a download.

`synthetic`: images without content, for tests and speed measurements.

`shapes`: ten classes of textured shapes.
Each class is an outline filled with a texture. Where it lies, its size and rotation, the
pitch and phase of the texture, all colours, the background, the clutter and the light
are drawn for each image: pixels alone say little about the class.

An image depends on its split and number alone, down to the last bit on every machine:
the draws are raw bits of a counter-based generator, and pixels are computed with
operations that IEEE 754 rounds in one way only (no sine, no font).

`upright_shapes` are the same but stand nearly upright, as things in photographs do: to tell
how such an image was turned one must know the shape. Turned `shapes` look like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from sslengine.data.manifest.index import ReadLater
from sslengine.data.options import SplitOptions, SyntheticOptions, own
from sslengine.data.sources.base import DataSource, grey_image
from sslengine.errors import DataError, listing
from sslengine.registry import register_data_source

# Twice as many images as the largest folder that is measured (docs/data_sources.md).
MOST_GENERATED = 20_000_000
# Images that were drawn are kept, up to so many bytes in each process: drawing one takes
# 0.25 ms at 48 pixels, about half as much as augmenting it twice.
KEPT_BYTES = 64 * 2**20
# Captions are of an image that is drawn so small: they do not depend on its size.
CAPTION_SIDE = 16

Plane = NDArray[np.float64]
Pattern = Callable[[Plane, Plane], Plane]


class GeneratedSource(DataSource):
    """Draw images by number: more than by default if DATA_LIMIT asks for them."""

    reads = ()
    default_lengths: ClassVar[Mapping[str, int]]  # by split

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        wanted = options.DATA_LIMIT + options.DATA_LIMIT_SAMPLING.SKIP_NUM_SAMPLES
        if wanted > MOST_GENERATED:
            where, most = f"config.DATA.{split}.DATA_LIMIT", MOST_GENERATED
            raise DataError(f"{where}: requires {wanted} samples; at most {most} are generated.")
        self._length = max(self.default_lengths[split], wanted)

    def __len__(self) -> int:
        return self._length

    def files_of(self, rows: NDArray[np.int64]) -> tuple[str, ...]:
        return ()


@register_data_source("synthetic")
class SyntheticSource(GeneratedSource):
    """Grey images, or with RANDOM_SYNTHETIC_IMAGES smooth coloured noise drawn from the index."""

    default_lengths: ClassVar = {"TRAIN": 50_000, "TEST": 50_000}

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        drawn = own(options, SyntheticOptions)
        self.num_classes = max(1, drawn.RANDOM_SYNTHETIC_LABELS)
        self._side = options.DEFAULT_GRAY_IMG_SIZE
        self._random = drawn.RANDOM_SYNTHETIC_IMAGES

    def image(self, index: int) -> Image.Image:
        return _noise(index, self._side) if self._random else grey_image(self._side)

    def label(self, index: int) -> int:
        return index % self.num_classes


def _noise(index: int, side: int) -> Image.Image:
    draw = np.random.default_rng(index)
    coarse = max(2, side // 16)
    small = draw.integers(0, 256, (coarse, coarse, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((side, side))
    return image.filter(ImageFilter.GaussianBlur(draw.uniform(coarse / 2, coarse * 2)))


@register_data_source("shapes")
class ShapesSource(GeneratedSource):
    """Squares of side DEFAULT_GRAY_IMG_SIZE; the classes in turn."""

    default_lengths: ClassVar = {"TRAIN": 5_000, "TEST": 2_000}
    upright: ClassVar[bool] = False

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self.num_classes = len(CLASSES)
        self._split = split
        self._side = options.DEFAULT_GRAY_IMG_SIZE
        self._kept: dict[int, NDArray[np.uint8]] = {}

    def image(self, index: int) -> Image.Image:
        pixels = self._kept.get(index)
        if pixels is None:
            pixels = draw_shape(self._split, index, self._side, self.upright)
            if (len(self._kept) + 1) * pixels.nbytes <= KEPT_BYTES:
                self._kept[index] = pixels
        return Image.fromarray(pixels)

    def label(self, index: int) -> int:
        return class_of(index)

    def column(self, name: str, where: str) -> Sequence[Any]:
        columns = {"caption": self.caption, "caption_vector": self.caption_vector}
        if name not in columns:
            raise DataError(f"{where}: shapes have {listing(columns)}; got {name!r}.")
        return ReadLater(columns[name], len(self))

    def caption(self, index: int) -> str:
        """Name the shape's colour and texture, the shape, and how bright its ground is."""
        pixels, inside = _drawn(self._split, index, CAPTION_SIDE, self.upright)
        shape, ground = (
            pixels[each].sum(axis=0).tolist() for each in (inside >= 0.5, inside < 0.5)
        )
        share, colour = max(zip(shape, ("red", "green", "blue")))
        colour = colour if share * 8 > sum(shape) * 3 else "grey"
        bright = sum(ground) > 3 * 128 * int((inside < 0.5).sum())
        return f"{colour} {NAMES[class_of(index)]} on {'bright' if bright else 'dark'} ground"

    def caption_vector(self, index: int) -> NDArray[np.float32]:
        """Return 1 for each word of the caption, of those that captions have."""
        words = self.caption(index).split()
        return np.array([each in words for each in WORDS], np.float32)

    def mask(self, index: int) -> NDArray[np.generic]:
        return mask_of_shape(self._split, index, self._side, self.upright)


@register_data_source("upright_shapes")
class UprightShapesSource(ShapesSource):
    """Shapes that are turned by 17 degrees at most."""

    upright = True


def class_of(index: int) -> int:
    return index % len(CLASSES)


def draw_shape(split: str, index: int, side: int, upright: bool = False) -> NDArray[np.uint8]:
    """Draw image `index` of TRAIN or TEST: side x side x 3."""
    return _drawn(split, index, side, upright)[0]


def mask_of_shape(split: str, index: int, side: int, upright: bool = False) -> NDArray[np.uint8]:
    """Return the class of each pixel, from 1; 0 is everything else.

    A pixel that the shape covers by half or more belongs to it.
    """
    inside = _drawn(split, index, side, upright)[1] >= 0.5
    return (inside * (class_of(index) + 1)).astype(np.uint8)


def _drawn(split: str, index: int, side: int, upright: bool) -> tuple[NDArray[np.uint8], Plane]:
    """Draw the image, and how much of each pixel the shape covers."""
    draws = _Draws(split, index)
    x, y = _grid(side)
    scene = _blend(_ink(draws), _ink(draws), 0.5 + 0.35 * _ramp(draws, x, y))
    for _ in range(2):
        width, height = draws.uniform(0.06, 0.2), draws.uniform(0.04, 0.1)
        u, v = _moved(draws, x, y, reach=1.0)
        scene = _blend(scene, _ink(draws), _inside(_box(u, v, width, height), side))
    size = draws.uniform(0.7, 1.0)
    draws.upright = upright
    u, v = _moved(draws, x, y, reach=0.2)
    outline, texture = CLASSES[class_of(index)]
    shape = _inside(size * outline(u / size, v / size), side)
    scene = _blend(scene, _textured(draws, texture, u, v), shape)
    draws.upright = False
    light = draws.uniform(0.7, 1.2) * (1 + draws.uniform(0, 0.25) * _ramp(draws, x, y))
    scene = scene * light[..., None] + draws.noise(scene.shape, 0.03)
    return (np.clip(scene, 0, 1) * 255 + 0.5).astype(np.uint8), shape


class _Draws:
    """The random numbers of one image."""

    def __init__(self, split: str, index: int) -> None:
        stream = {"TRAIN": 1, "TEST": 2}[split]
        self._bits = np.random.Philox(key=stream << 64 | index)
        self.upright = False

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * ((self._bits.random_raw() >> 11) * 2.0**-53)

    def direction(self) -> tuple[float, float]:
        """Draw a unit vector, from a point in the disc: cosines differ between machines."""
        if self.upright:
            sine = self.uniform(-0.3, 0.3)
            return math.sqrt(1 - sine * sine), sine
        while True:
            x, y = self.uniform(-1, 1), self.uniform(-1, 1)
            length = math.sqrt(x * x + y * y)
            if 0.1 < length <= 1:
                return x / length, y / length

    def noise(self, shape: tuple[int, ...], amplitude: float) -> Plane:
        count = math.prod(shape)
        words = self._bits.random_raw(-(-count // 8)).astype("<u8")
        octets = np.frombuffer(words.tobytes(), np.uint8, count).reshape(shape)
        return (octets / 127.5 - 1) * amplitude


@lru_cache(maxsize=4)
def _grid(side: int) -> tuple[Plane, Plane]:
    """Return x and y of the pixels' centres, from -1 to 1."""
    line = (2 * np.arange(side) + 1) / side - 1
    return np.broadcast_to(line, (side, side)), np.broadcast_to(line[:, None], (side, side))


def _moved(draws: _Draws, x: Plane, y: Plane, reach: float) -> tuple[Plane, Plane]:
    """Draw the coordinates of a thing that lies within `reach` of the middle, turned at random."""
    return _turned(draws, x - draws.uniform(-reach, reach), y - draws.uniform(-reach, reach))


def _turned(draws: _Draws, x: Plane, y: Plane) -> tuple[Plane, Plane]:
    cosine, sine = draws.direction()
    return cosine * x + sine * y, cosine * y - sine * x


def _ramp(draws: _Draws, x: Plane, y: Plane) -> Plane:
    """Rise in a random direction, from -1.4 to 1.4 at most."""
    return _turned(draws, x, y)[0]


def _ink(draws: _Draws, level: float | None = None) -> Plane:
    """Draw a colour, about as bright as `level` if there is one."""
    level = draws.uniform(0.2, 0.8) if level is None else level
    return np.array([level + draws.uniform(-0.2, 0.2) for _ in range(3)])


def _textured(draws: _Draws, texture: Pattern, u: Plane, v: Plane) -> Plane:
    """Draw two inks, darker and brighter, in the texture's pattern."""
    pitch = draws.uniform(0.2, 0.32)
    p, q = _turned(draws, u / pitch, v / pitch)
    phase = draws.uniform(-0.5, 0.5), draws.uniform(-0.5, 0.5)
    amount = np.clip(0.5 + texture(p + phase[0], q + phase[1]), 0, 1)
    contrast, level = draws.uniform(0.3, 0.6), draws.uniform(0.3, 0.7)
    darker, brighter = _ink(draws, level - contrast / 2), _ink(draws, level + contrast / 2)
    swap = draws.uniform(0, 1) < 0.5
    return _blend(brighter, darker, amount) if swap else _blend(darker, brighter, amount)


def _inside(distance: Plane, side: int) -> Plane:
    """Return how much of each pixel lies where the distance to the outline is negative."""
    return np.clip(0.5 - distance * (side / 2), 0, 1)


def _blend(below: Plane, above: Plane, amount: Plane) -> Plane:
    return below + amount[..., None] * (above - below)


def _wave(t: Plane) -> Plane:
    """Return a triangle wave of period 1, from 1 at 0 to -1 at a half."""
    return 4 * np.abs(t - np.floor(t) - 0.5) - 1


def _radius(x: Plane, y: Plane) -> Plane:
    return np.sqrt(x * x + y * y)


def _box(x: Plane, y: Plane, width: float, height: float) -> Plane:
    return np.maximum(np.abs(x) - width, np.abs(y) - height)


# Of each class, whose number is its place, an outline: negative inside a shape that just fits
# between -1 and 1; and a texture between two inks, where -0.5 and less is the first and 0.5 and
# more the second.
CLASSES: tuple[tuple[Pattern, Pattern], ...] = (
    # a disc, stripes
    (lambda x, y: _radius(x, y) - 1, lambda x, y: _wave(x)),
    # a ring, checks
    (lambda x, y: np.abs(_radius(x, y) - 0.7) - 0.3, lambda x, y: 1.5 * _wave(x) * _wave(y)),
    # a crescent, plain
    (
        lambda x, y: np.maximum(_radius(x, y) - 1, 0.85 - _radius(x - 0.55, y)),
        lambda x, y: np.zeros_like(x),
    ),
    # a bar, dots
    (lambda x, y: _box(x, y, 1.15, 0.4), lambda x, y: _wave(x) + _wave(y) - 0.7),
    # a square, zigzag
    (lambda x, y: _box(x, y, 0.8, 0.8), lambda x, y: _wave(y + 0.3 * _wave(0.7 * x))),
    # a triangle, mesh
    (
        lambda x, y: np.maximum(0.866 * np.abs(x) - 0.5 * y, y) - 0.55,
        lambda x, y: 2 * np.maximum(_wave(x), _wave(y)) - 1.3,
    ),
    # a cross, rings
    (
        lambda x, y: np.minimum(_box(x, y, 1.05, 0.33), _box(x, y, 0.33, 1.05)),
        lambda x, y: _wave(_radius(x, y)),
    ),
    # a star, bricks
    (
        lambda x, y: np.sqrt(np.abs(x)) + np.sqrt(np.abs(y)) - 1.15,
        lambda x, y: 2 * np.maximum(_wave(y), _wave(x / 2 + np.floor(y) / 2)) - 1.4,
    ),
    # a corner, honeycomb
    (
        lambda x, y: np.maximum(_box(x, y, 0.9, 0.9), np.minimum(x, y) + 0.1),
        lambda x, y: _wave(x) + _wave(0.5 * x + 0.866 * y) + _wave(0.866 * y - 0.5 * x),
    ),
    # a chevron, hyperbolas
    (
        lambda x, y: np.maximum(np.abs(y + 0.35 - np.abs(x)) - 0.42, np.abs(x) - 1),
        lambda x, y: _wave(1.2 * x * y),
    ),
)

# What captions call them.
NAMES = (
    "striped disc", "checked ring", "plain crescent", "dotted bar", "zigzag square",
    "meshed triangle", "ringed cross", "bricked star", "honeycomb corner", "hyperbolic chevron",
)  # fmt: skip
WORDS = (*" ".join(NAMES).split(), "red", "green", "blue", "grey", "dark", "bright")
