"""What is exported: the trunk of a run, ready to be used, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
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
from sslengine.data.decode.pixel_format import probe
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.errors import SSLEngineError
from sslengine.export.preprocessing import Preprocessing, describe
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
    def limits(self) -> tuple[float, float] | None:
        """Of what resizing makes of images of more than 8 bits."""
        return self.image_options.limits

    @cached_property
    def has_bytes(self) -> bool | None:
        """Has the run's transform images of 8 bits, which ToTensor divides by 255?

        None: it is not known, for images with the values of their files that cannot be read here.
        """
        if self.image_mode != "stored":
            return True
        with suppress(SSLEngineError, OSError):
            seen = probe(self.image_options, "TRAIN")
            if seen is not None:
                return seen.format.dtype == "uint8"
        # Means of bytes are from 0 to 1; the limits are those of images of more than 8 bits.
        return False if self.limits or max(self.preprocessing.mean) > 1 else None

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width of the trunk's input; that of the first image if the view has none."""
        if self.preprocessing.size is not None:
            return self.preprocessing.size
        with suppress(SSLEngineError, OSError):
            seen = probe(self.image_options, "TRAIN")
            if seen is not None:
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
        """Of `images`, as the predictor computes them in float32: IMAGES x dimensions."""
        return self.features_of(self.images)

    @torch.no_grad()
    def features_of(self, images: Tensor) -> Tensor:
        (feature,) = self.trunk(images)
        return cast(Tensor, feature).flatten(1)


def make_subject(trained: Trained) -> Subject:
    """Take the trunk out of a trained network, in float32 and for RGB."""
    trunk = trained.trunk.float().requires_grad_(False)
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
    """As safetensors takes them: contiguous, and no two share memory."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
