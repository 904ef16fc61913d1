"""What is done to the pixels of a view, as plain data: operations, with their draws made.

A transform of the TRANSFORMS list draws its random numbers and says which operations they
come to. `on_pil` is what an operation is: a back-end computes the same, its own way, or
hands the image to `on_pil`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torchvision.transforms import InterpolationMode, functional

Size = tuple[int, int]  # height, width

F: Any = functional  # takes images as well as the tensors that its hints name


class Op(ABC):
    @abstractmethod
    def on_pil(self, image: Image.Image) -> Image.Image: ...

    def size(self, before: Size) -> Size:
        """Of the image afterwards."""
        return before


@dataclass(frozen=True)
class Crop(Op):
    """A part of the image, which lies within it, scaled to a size of its own."""

    top: int
    left: int
    height: int
    width: int
    to: Size
    interpolation: InterpolationMode = InterpolationMode.BILINEAR

    def on_pil(self, image: Image.Image) -> Any:
        box = (self.left, self.top, self.left + self.width, self.top + self.height)
        part = image.crop(box)
        if (self.height, self.width) == self.to:
            return part
        return F.resize(part, list(self.to), self.interpolation)

    def size(self, before: Size) -> Size:
        return self.to


@dataclass(frozen=True)
class FlipLeftRight(Op):
    def on_pil(self, image: Image.Image) -> Image.Image:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


@dataclass(frozen=True)
class QuarterTurns(Op):
    """So many, from 1 to 3, counter-clockwise. No pixel is lost, nor is one made up."""

    times: int

    def on_pil(self, image: Image.Image) -> Image.Image:
        kind = Image.Transpose
        turns = {1: kind.ROTATE_90, 2: kind.ROTATE_180, 3: kind.ROTATE_270}
        return image.transpose(turns[self.times])

    def size(self, before: Size) -> Size:
        return before if self.times == 2 else before[::-1]


@dataclass(frozen=True)
class Turn(Op):
    """By any angle, counter-clockwise, in its old frame: black where nothing is."""

    degrees: float

    def on_pil(self, image: Image.Image) -> Image.Image:
        return image.rotate(self.degrees)


@dataclass(frozen=True)
class Brightness(Op):
    factor: float

    def on_pil(self, image: Image.Image) -> Any:
        return F.adjust_brightness(image, self.factor)


@dataclass(frozen=True)
class Contrast(Op):
    factor: float

    def on_pil(self, image: Image.Image) -> Any:
        return F.adjust_contrast(image, self.factor)


@dataclass(frozen=True)
class Saturation(Op):
    factor: float

    def on_pil(self, image: Image.Image) -> Any:
        return F.adjust_saturation(image, self.factor)


@dataclass(frozen=True)
class Hue(Op):
    """Turn the hue by `shift` of the circle, from -0.5 to 0.5."""

    shift: float

    @property
    def as_byte(self) -> int:
        """torchvision's conversion, whose sign it takes off by wrapping around."""
        return int(self.shift * 255) % 256

    def on_pil(self, image: Image.Image) -> Any:
        return F.adjust_hue(image, self.shift)


@dataclass(frozen=True)
class Grey(Op):
    """Luminance in all three channels."""

    def on_pil(self, image: Image.Image) -> Any:
        return F.rgb_to_grayscale(image, num_output_channels=3)


@dataclass(frozen=True)
class Blur(Op):
    """Pillow's GaussianBlur: three box blurs."""

    radius: float

    def on_pil(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(self.radius))


@dataclass(frozen=True)
class Solarize(Op):
    """Invert the values from `threshold` on."""

    threshold: int

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.solarize(image, self.threshold)


@dataclass(frozen=True)
class Posterize(Op):
    """Keep the upper `bits` of each value, from 1 to 8."""

    bits: int

    @property
    def kept(self) -> int:
        """The bits of a value that stay, as a number."""
        return 256 - (1 << 8 - self.bits)

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.posterize(image, self.bits)


@dataclass(frozen=True)
class Invert(Op):
    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.invert(image)


@dataclass(frozen=True)
class AutoContrast(Op):
    """Stretch each channel over all its values."""

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.autocontrast(image)


@dataclass(frozen=True)
class Equalize(Op):
    """Spread each channel's values, so that about as many pixels have each."""

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.equalize(image)


@dataclass(frozen=True)
class Sharpness(Op):
    """At 0 smoothed with the neighbours, at 1 as it is, above 1 sharpened. The outermost pixels
    stay."""

    factor: float

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageEnhance.Sharpness(image).enhance(self.factor)


@dataclass(frozen=True)
class CenterOnBlack(Op):
    """The middle of the image, with black around it where it is smaller than `to`."""

    to: Size

    def on_pil(self, image: Image.Image) -> Any:
        return F.center_crop(image, list(self.to))

    def size(self, before: Size) -> Size:
        return self.to
