"""Facts about a run that methods need and that no single section holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.registry import TRANSFORMS


@dataclass(frozen=True)
class RunFacts:
    world_size: int = 1
    batch_size_per_replica: int = 1
    views_per_image: int = 1
    # Known once the data set has been opened; 0 before.
    num_train_samples: int = 0

    @property
    def global_batch_size(self) -> int:
        return self.world_size * self.batch_size_per_replica

    def with_data(self, num_train_samples: int) -> RunFacts:
        return replace(self, num_train_samples=num_train_samples)


def run_facts(config: DictConfig) -> RunFacts:
    """The facts that the config alone tells."""
    train = config.DATA.TRAIN
    return RunFacts(
        world_size=world_size(config),
        batch_size_per_replica=train.BATCHSIZE_PER_REPLICA,
        views_per_image=views_per_image(OmegaConf.to_container(train.TRANSFORMS)),  # type: ignore[arg-type]
    )


def world_size(config: DictConfig) -> int:
    return int(config.DISTRIBUTED.NUM_NODES * config.DISTRIBUTED.NUM_PROC_PER_NODE)


def views_per_image(transforms: Iterable[Mapping[str, Any]]) -> int:
    """How many views the transforms make of one image.

    A transform that makes several says so: `count_views(**its_arguments)`.
    """
    views = 1
    for entry in transforms:
        count = getattr(TRANSFORMS.get(entry["name"]), "count_views", None)
        if count is not None:
            arguments = {k: v for k, v in entry.items() if k not in TRANSFORMS.entry_keys}
            views *= count(**arguments)
    return views
