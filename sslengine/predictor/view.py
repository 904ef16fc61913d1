"""Deterministic transforms of a single image for a trained model."""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.transform import Sample
from sslengine.data.judged_view import choose
from sslengine.data.options import DataOptions
from sslengine.data.seeding import seed_sample, streams_kept
from sslengine.errors import ConfigError


class View:
    """`view(image)`: the model's input. `description`: where the transforms come from."""

    def __init__(self, data: DataOptions, seed: int) -> None:
        self.entries, self.description = choose(data)
        where = "the predictor's transforms"
        self._pipeline = Pipeline(self.entries, where, limits=data.TRAIN.limits)
        self._seed = seed

    def __call__(self, image: Image.Image) -> Tensor:
        sample: Sample = {"data": [image], "data_valid": [1], "data_idx": [0], "label": [0]}
        with streams_kept():
            # Random transforms draw as for the first image of a test set, every time.
            seed_sample(self._seed, (0, 0))
            result = self._pipeline(sample)["data"][0]
        if not isinstance(result, Tensor):
            raise ConfigError(
                f"config.DATA.TEST.TRANSFORMS: they return {type(result).__name__}; a model needs "
                f"a tensor. End them with ToTensor."
            )
        return result.to(torch.float32)
