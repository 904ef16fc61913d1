"""Pool a trunk's features before evaluation, and flatten them if configured."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.models.options import FeatureEvalOptions
from sslengine.models.routing import FEATURES_KEY, PoolSpec, pool_specs


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
