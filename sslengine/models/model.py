"""A trunk and its heads, and how the inputs pass through them. An input is one of:

    a tensor                N x C x H x W
    a list of tensors       crops of several sizes: consecutive crops of one size pass through
                            the trunk in one batch, then all crops through the heads in one batch
    a dict of these         one route for each (MODEL.MULTI_INPUT_HEAD_MAPPING)

With MODEL.VIEWS_APART each view passes through trunk and heads as a separate batch, so batch norms
use the statistics of one view. The outputs are concatenated in the order of the views.

The output is a list with the output of each head, or, without heads, the features. If a single
head returns a list (embeddings and scores, say), that list is the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError, TrainingError, listing
from sslengine.models.options import FeatureEvalOptions
from sslengine.models.routing import FEATURES_KEY, MAPPING_KEY, PoolSpec, Route, pool_specs
from sslengine.models.trunks.base import Trunk, single_features

Images: TypeAlias = Tensor | Sequence[Tensor]


class Model(nn.Module):
    def __init__(
        self,
        trunk: Trunk,
        heads: nn.ModuleList,
        routes: Sequence[Route],
        pooling: nn.Module | None = None,
        flip_channels: bool = False,
        single_pass_every_crop: bool = False,
        views_apart: int = 0,
    ) -> None:
        """
        pooling: maps the list of a route's features.
        flip_channels: turn RGB into BGR.
        views_apart: how many views a training batch has, if each is passed as a separate batch;
            0: all views are one batch.
        """
        super().__init__()
        self.trunk = trunk
        self.heads = heads
        self.pooling = pooling
        self.routes = tuple(routes)
        self.flip_channels = flip_channels
        self.single_pass_every_crop = single_pass_every_crop
        self.views_apart = views_apart
        self._all_heads = tuple(range(len(heads)))
        self._frozen: tuple[str, ...] = ()
        for route in self.routes:
            trunk.check_features(single_features(route.features), route.where)

    def freeze(self, *parts: str) -> None:
        """Freeze `trunk` or `heads`: no gradients, and always eval mode, so statistics stay."""
        self._frozen = parts
        for part in parts:
            self.get_submodule(part).requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Model:
        super().train(mode)
        for part in self._frozen:
            self.get_submodule(part).eval()
        return self

    def forward(self, batch: Images | Mapping[str, Images]) -> list[Any]:
        route = self.routes[0]
        prepared = self.views_apart or self.flip_channels or self.pooling is not None
        if type(batch) is Tensor and not (prepared or route.key):
            outputs = self._run_heads(route, self.trunk(batch, route.features))
        elif not isinstance(batch, Tensor) and isinstance(batch, Mapping):
            outputs = self._map(batch)
        elif route.key:
            raise ConfigError(
                f"config.MODEL.{MAPPING_KEY} expects the inputs {self._keys()}, but the batch "
                f"has one input without a name; see config.DATA.TRAIN.INPUT_KEY_NAMES."
            )
        else:
            outputs = self._through(route, batch, {})
        return outputs[0] if len(outputs) == 1 and isinstance(outputs[0], list) else outputs

    def _map(self, batch: Mapping[str, Images]) -> list[Any]:
        """Return the output of each input that has a route."""
        present = [route for route in self.routes if route.key in batch]
        if not present:
            raise ConfigError(
                f"config.MODEL.{MAPPING_KEY}: no head for any of the inputs {listing(batch)}; "
                f"it names {self._keys()}."
            )
        found = []
        for route in present:
            extra = {key: batch[key] for key in route.additional_keys if key in batch}
            outputs = self._through(route, batch[route.key], extra)
            found.append(outputs[0] if len(outputs) == 1 else outputs)
        return found

    def _keys(self) -> str:
        return listing(route.key for route in self.routes if route.key) or "none"

    def _through(self, route: Route, images: Images, extra: Mapping[str, Images]) -> list[Any]:
        views = self._views(images) if self.views_apart else []
        if len(views) < 2:
            return self._run_heads(route, self._features(route, images, extra))
        return joined([self._run_heads(route, self._features(route, x, {})) for x in views])

    def _views(self, images: Images) -> Sequence[Tensor]:
        """Split a batch into its views. In eval mode no output depends on the other rows."""
        if not isinstance(images, Tensor):
            return images
        if not self.training:
            return [images]
        if len(images) % self.views_apart:
            raise TrainingError(
                f"config.MODEL.VIEWS_APART: a batch of {self.views_apart} views of every image "
                f"cannot have {len(images)} rows; is config.DATA.TRAIN.COLLATE_FUNCTION "
                f"simclr_collator?"
            )
        return images.chunk(self.views_apart)

    def _run_heads(self, route: Route, features: list[Any]) -> list[Any]:
        if not route.heads:
            return features
        # Indexing a ModuleList is slow, and usually the route uses all heads.
        every = route.heads == self._all_heads
        heads = self.heads if every else [self.heads[index] for index in route.heads]
        if route.chained:
            output = features[0]
            for head in heads:
                output = head(output)
            return [output]
        if len(features) == 1:
            return [head(features[0]) for head in heads]
        return [head(feature) for head, feature in zip(heads, features, strict=True)]

    def _features(self, route: Route, images: Images, extra: Mapping[str, Any]) -> list[Tensor]:
        groups = [self.trunk(group, route.features, **extra) for group in self._groups(images)]
        if self.pooling is not None:
            groups = [self.pooling(group) for group in groups]
        if len(groups) == 1:
            only: list[Tensor] = groups[0]
            return only
        if extra:
            raise ConfigError(f"{route.where}: additional_keys require crops of a single size.")
        return [torch.cat(parts) for parts in zip(*groups, strict=True)]

    def _groups(self, images: Images) -> Iterator[Tensor]:
        """Yield the batches that pass through the trunk."""
        if isinstance(images, Tensor):
            yield self._channels(images)
        elif self.single_pass_every_crop:
            yield from map(self._channels, images)
        else:
            for _, crops in groupby(images, key=lambda crop: crop.shape[-2:]):
                same_size = list(crops)
                joined = torch.cat(same_size) if len(same_size) > 1 else same_size[0]
                yield self._channels(joined)

    def _channels(self, images: Tensor) -> Tensor:
        return images.flip(1) if self.flip_channels else images


def joined(outputs: Sequence[list[Any]]) -> list[Any]:
    """Concatenate the views' rows in order; the result is nested like the output of one view."""
    return [
        torch.cat(parts) if isinstance(parts[0], Tensor) else joined(parts)
        for parts in zip(*outputs, strict=True)
    ]


# ---- pooling, before evaluation


class FeaturePooling(nn.Module):
    """One pooling for each feature. It has no parameters."""

    def __init__(self, poolings: Sequence[nn.Module], flatten: bool) -> None:
        super().__init__()
        self.poolings = nn.ModuleList(poolings)
        self.flatten = flatten

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        pooled = [pool(x) for pool, x in zip(self.poolings, features, strict=True)]
        return [torch.flatten(x, start_dim=1) for x in pooled] if self.flatten else pooled


def build_pooling(
    settings: FeatureEvalOptions, where: str = "config.MODEL."
) -> FeaturePooling | None:
    """Build the poolings of FEATURE_EVAL_SETTINGS; None if there are none."""
    path = f"{where}{FEATURES_KEY}"
    specs = pool_specs(settings.LINEAR_EVAL_FEAT_POOL_OPS_MAP, path)
    if not specs:
        return None
    poolings = [_pooling(spec, f"{path}.{index}") for index, spec in enumerate(specs)]
    return FeaturePooling(poolings, settings.SHOULD_FLATTEN_FEATS)


def _pooling(spec: PoolSpec, where: str) -> nn.Module:
    try:
        pooling: nn.Module = getattr(nn, spec.operation)(*spec.arguments)
    except TypeError as error:
        raise ConfigError(f"{where}: {spec.operation}{spec.arguments}: {error}") from error
    return pooling
