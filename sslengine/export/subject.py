"""What is exported: a trained trunk, ready to be used, and how images become its input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig
from PIL import Image
from torch import Tensor, nn

from sslengine import catalog  # noqa: F401 - declares the names that a config has
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.data.pixel_format import probe
from sslengine.data.pixel_values import PixelRange
from sslengine.errors import SSLEngineError
from sslengine.models.lora import merge_lora
from sslengine.models.options import ModelOptions
from sslengine.models.trunks.base import Trunk
from sslengine.trained import Trained, View

DEFAULT_SIZE = 224  # of images of a run that names no size and cannot be read here
IMAGES = 16  # on which an export is compared with its source
UNKNOWN = (
    "whether the run's images have 8 bits is not known, for they cannot be read here. "
    "--set DATA.TRAIN.DATA_PATHS=[PATH] says where they are"
)
_SIDES = (41, 29)  # added to the size of the view: pictures are larger, and not square

# Of Pillow's numbers, which YAML of torchvision's transforms has; its default is bilinear.
_BY_NUMBER = {each.value: each.name.lower() for each in Image.Resampling}
# In this order, each of them at most once.
_KNOWN = ("Resize", "CenterCrop", "ToTensor", "Normalize")


@dataclass
class Subject:
    trunk: Trunk  # on the CPU, in float32, in eval mode; it takes RGB
    network: str  # student, teacher, or model where there is one network
    run_folder: Path | None  # None: the weights are a file of another program
    checkpoint: Path
    config: DictConfig
    options: ModelOptions  # with a number of channels
    program: Any = None  # of torch.export, once it was made

    @property
    def layer(self) -> str:
        return self.trunk.feature_names[-1]

    @property
    def channels(self) -> int:
        return self.options.in_chans()

    @cached_property
    def view(self) -> View:
        return View(read(self.config, DataOptions), read(self.config, RunOptions).SEED_VALUE)

    @cached_property
    def preprocessing(self) -> Preprocessing:
        return describe(self.view.entries, self.view.description, self.channels)

    @cached_property
    def image_options(self) -> SplitOptions:
        return read(self.config, DataOptions).TRAIN

    @property
    def image_mode(self) -> str:
        return self.image_options.IMAGE_MODE

    @property
    def pixel_range(self) -> PixelRange | None:
        """Return the range that the run brings to 8 bits, for images of more."""
        return None if self.image_mode == "stored" else PixelRange.parse(
            self.image_options.PIXEL_RANGE
        )  # fmt: skip

    @property
    def besides(self) -> str:
        """Say why other libraries' transforms of pictures do not do what the run does; "" if so."""
        if self.image_mode == "stored":
            return "images are arrays with the values of their files"
        if self.pixel_range is not None:
            return f"PIXEL_RANGE {self.image_options.PIXEL_RANGE} brings images to 8 bits"
        return self.preprocessing.besides

    @cached_property
    def has_bytes(self) -> bool | None:
        """Say whether the run's transform has images of 8 bits, which ToTensor divides by 255.

        None: it is not known, for images with the values of their files that cannot be read here.
        """
        if self.image_mode != "stored":
            return True
        with suppress(SSLEngineError, OSError):
            if (seen := probe(self.image_options, "TRAIN")) is not None:
                return seen.format.dtype == "uint8"
        # Means of bytes are from 0 to 1; the limits are those of images of more than 8 bits.
        return False if self.image_options.limits or max(self.preprocessing.mean) > 1 else None

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width of the trunk's input; that of the first image if the view has none."""
        if self.preprocessing.size is not None:
            return self.preprocessing.size
        with suppress(SSLEngineError, OSError):
            if (seen := probe(self.image_options, "TRAIN")) is not None:
                height, width = self.view(seen.image).shape[-2:]
                return height, width
        return DEFAULT_SIZE, DEFAULT_SIZE

    @cached_property
    def pictures(self) -> NDArray[np.uint8] | None:
        """Random RGB pictures; None where the run's images are of another kind."""
        if self.channels != 3 or self.image_mode != "RGB":
            return None
        height, width = self.size
        more = (0, 0) if self.preprocessing.size is None else _SIDES
        shape = (IMAGES, height + more[0], width + more[1], 3)
        return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    @cached_property
    def images(self) -> Tensor:
        """The trunk's input for the pictures; where there are none, random numbers."""
        if self.pictures is not None:
            return torch.stack([self.view(Image.fromarray(each)) for each in self.pictures])
        generator = torch.Generator().manual_seed(0)
        return torch.randn(IMAGES, self.channels, *self.size, generator=generator)

    @cached_property
    def features(self) -> Tensor:
        """The features of `images`, as the predictor computes them: IMAGES x dimensions."""
        return self.compute(self.images)

    @torch.no_grad()
    def compute(self, images: Tensor) -> Tensor:
        (feature,) = self.trunk(images)
        return cast(Tensor, feature).flatten(1)


def make_subject(trained: Trained) -> Subject:
    """Take the trunk out of a trained network, in float32 and for RGB."""
    trunk = trained.trunk.float().requires_grad_(False)
    merge_lora(trunk)
    if hasattr(trunk, "mask_token"):
        del trunk.mask_token  # it is of use in training alone, and other libraries have none
    if getattr(trained.model, "flip_channels", False):
        _take_rgb(trunk)
    folder = trained.run_folder if trained.is_run else None
    return Subject(
        trunk, trained.network, folder, trained.checkpoint, trained.config, trained.options
    )


def _take_rgb(trunk: nn.Module) -> None:
    """Turn the first layer of a trunk that was trained on BGR, in place of the images."""
    first = next(each for each in trunk.modules() if isinstance(each, nn.Conv2d))
    first.weight.data = first.weight.data.flip(1)


def plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors as safetensors takes them: contiguous, and no two share memory."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}


# ---- preprocessing


@dataclass(frozen=True)
class Preprocessing:
    """How images become the trunk's input, in the words that other libraries have for it."""

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
        """Divide the crop by the resized shorter side, as timm does, which rounds down."""
        if self.size is None or self.crop_mode == "squash":
            return 1.0
        side, resized = min(self.size), self.resize
        if not isinstance(resized, int) or resized == side:
            return 1.0
        exact = side / resized
        return exact if int(side / exact) == resized else side / (resized + 0.5)

    def timm_differs(self) -> str:
        """Say why timm's transform cannot do the same; "" if it can."""
        if self.besides:
            return self.besides
        if self.resize is None:
            return "images are not resized"
        square = self.size is not None and self.size[0] == self.size[1]
        if self.crop_mode == "center" and not (square and isinstance(self.resize, int)):
            return "timm crops squares out of images resized by their shorter side"
        return ""


def describe(entries: Sequence[Mapping[str, Any]], source: str, channels: int) -> Preprocessing:
    """Describe what a list of TRANSFORMS for single images does."""
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
