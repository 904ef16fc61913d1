"""How images become the trunk's input, in the words that other libraries have for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

# Of Pillow's numbers, which YAML of torchvision's transforms has; its default is bilinear.
_BY_NUMBER = {each.value: each.name.lower() for each in Image.Resampling}
# In this order, each of them at most once.
_KNOWN = ("Resize", "CenterCrop", "ToTensor", "Normalize")


@dataclass(frozen=True)
class Preprocessing:
    # The transforms of single images, as in the config, and where they come from.
    transforms: list[dict[str, Any]]
    source: str
    channels: int = 3
    size: tuple[int, int] | None = None  # height, width of the input
    resize: int | tuple[int, int] | None = None  # one number: of the shorter side
    crop: tuple[int, int] | None = None  # in the centre
    interpolation: str = "bilinear"
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    # Why resize, crop, mean and std are not all that is done; "" if they are.
    besides: str = ""

    @property
    def crop_mode(self) -> str:
        return "squash" if isinstance(self.resize, tuple) and not self.crop else "center"

    @property
    def crop_pct(self) -> float:
        """The crop over the resized shorter side. timm divides by it and rounds down."""
        if self.size is None or self.crop_mode == "squash":
            return 1.0
        side, resized = min(self.size), self.resize
        if not isinstance(resized, int) or resized == side:
            return 1.0
        exact = side / resized
        return exact if int(side / exact) == resized else side / (resized + 0.5)

    def with_timm(self) -> str:
        """Why timm's transform cannot do the same; "" if it can."""
        if self.besides:
            return self.besides
        if self.resize is None:
            return "images are not resized"
        square = self.size is not None and self.size[0] == self.size[1]
        if self.crop_mode == "center" and not (square and isinstance(self.resize, int)):
            return "timm crops squares out of images resized by their shorter side"
        return ""


def describe(entries: Sequence[Mapping[str, Any]], source: str, channels: int) -> Preprocessing:
    """What a list of TRANSFORMS for single images does."""
    plain = [dict(entry) for entry in entries]
    names = [str(entry.get("name")) for entry in plain]
    by_name = dict(zip(names, plain, strict=True))
    resize = _size(by_name.get("Resize", {}).get("size"))
    crop = _pair(_size(by_name.get("CenterCrop", {}).get("size")))
    normalise = by_name.get("Normalize", {})
    return Preprocessing(
        transforms=plain,
        source=source,
        channels=channels,
        size=crop or (resize if isinstance(resize, tuple) else None),
        resize=resize,
        crop=crop,
        interpolation=_interpolation(by_name.get("Resize", {}).get("interpolation", "bilinear")),
        mean=_numbers(normalise.get("mean"), channels, 0.0),
        std=_numbers(normalise.get("std"), channels, 1.0),
        besides=_besides(names, by_name),
    )


def _besides(names: Sequence[str], by_name: Mapping[str, Mapping[str, Any]]) -> str:
    other = [name for name in names if name not in _KNOWN]
    if other:
        return f"{other[0]} is among the transforms"
    if names != [name for name in _KNOWN if name in by_name]:
        return f"the transforms stand in the order {', '.join(names)}"
    more = by_name.get("Resize", {}).keys() - {"name", "size", "interpolation", "antialias"}
    if more:
        return f"Resize has {', '.join(sorted(more))}"
    return "" if "ToTensor" in names else "there is no ToTensor"


def _size(value: Any) -> int | tuple[int, int] | None:
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = [int(each) for each in value]
        return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])
    return None if value is None else int(value)


def _pair(value: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (value, value) if isinstance(value, int) else value


def _interpolation(value: Any) -> str:
    return _BY_NUMBER.get(value, str(value)) if isinstance(value, int) else str(value).lower()


def _numbers(value: Any, channels: int, default: float) -> list[float]:
    numbers = [float(each) for each in value] if value else [default]
    return numbers * channels if len(numbers) == 1 else numbers
