"""Features of a whole dataset: every sample once, in the order of the dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import unique_names
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.feed import DataFeed
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine.passes import trunk_of
from sslengine.engine.step import single_input_sample
from sslengine.models.model import Model
from sslengine.models.routing import Route
from sslengine.precision import Precision
from sslengine.progress import progress

# Input of the model -> features by layer.
Compute = Callable[[Any], dict[str, Tensor]]


@dataclass(frozen=True)
class Features:
    """Features on the host. layers: by their names in the config."""

    layers: dict[str, Tensor]
    targets: Tensor
    indices: Tensor


def ordered_feed(
    config: DictConfig,
    split: str,
    device: torch.device,
    classes: Sequence[Classes] = (),
    stretches: Callable[[SSLDataset], Sequence[range]] | None = None,
    data: DataOptions | None = None,
) -> DataFeed:
    """The split without shuffling, each sample once over all ranks. classes: those of TRAIN.

    stretches: see DataFeed. data: in place of config.DATA.
    """
    run = read(config, RunOptions)
    return DataFeed(
        data or read(config, DataOptions), split, training=False, seed=run.SEED_VALUE, rank=rank(),
        world_size=world_size(), device=device, mp_method=run.MULTI_PROCESSING_METHOD,
        classes=classes, stretches=stretches,
    )  # fmt: skip


def extract(
    compute: Compute, feed: DataFeed, options: SplitOptions, precision: Precision
) -> Iterator[Features]:
    """The features of this rank's batches."""
    with progress("computing features", sum(feed.batch_sizes)) as step:
        for number, batch in enumerate(feed.batches()):
            yield features_of(batch, compute, options, precision)
            step(feed.batch_sizes[number])


@torch.no_grad()
def features_of(
    batch: Any, compute: Compute, options: SplitOptions, precision: Precision
) -> Features:
    sample = single_input_sample(batch, options.INPUT_KEY_NAMES, options.TARGET_KEY_NAMES)
    with precision.autocast():
        layers = precision.as_full(compute(sample["input"]))
    indices = sample["data_idx"].cpu()
    read = indices >= 0  # the placeholder for a batch of unreadable images has index -1
    rows = {name: features.cpu()[read] for name, features in layers.items()}
    return Features(rows, sample["target"].cpu()[read], indices[read])


def layers_of(any_model: nn.Module) -> Compute:
    """A function: input -> outputs by name, in eval mode; of a custom model those of its trunk."""
    custom = not isinstance(any_model, Model)
    model: Any = Model(trunk_of(any_model), nn.ModuleList(), [Route()]) if custom else any_model

    def compute(images: Any) -> dict[str, Tensor]:
        model.eval()
        outputs = model(images)
        return dict(zip(_layer_names(model, len(outputs)), outputs, strict=True))

    return compute


def pixels(images: Tensor) -> dict[str, Tensor]:
    """The baseline for all features: the image itself, averaged to 16 x 16.

    kNN scores higher on it than on the full image, and a linear probe takes seconds.
    """
    return {"16x16": F.adaptive_avg_pool2d(images, 16).flatten(1)}


def _layer_names(model: Model, count: int) -> list[str]:
    """The names of the trunk's features, or of the heads."""
    route = model.routes[0]
    if route.heads:
        return ["heads"] if count == 1 else [f"heads{index}" for index in range(count)]
    return unique_names(list(route.features) or [model.trunk.feature_names[-1]])


def join(parts: Sequence[Features]) -> Features:
    """Concatenate batches."""
    return Features(
        {name: torch.cat([part.layers[name] for part in parts]) for name in parts[0].layers},
        torch.cat([part.targets for part in parts]),
        torch.cat([part.indices for part in parts]),
    )
