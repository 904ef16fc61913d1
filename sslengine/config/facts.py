"""Facts about a run that methods need and that no single section holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.registry import TRANSFORMS


@dataclass(frozen=True)
class RunFacts:
    world_size: int = 1
    batch_size_per_replica: int = 1
    views_per_image: int = 1
    # The modules of all heads in order, as (name, arguments).
    heads: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    collator: str = ""
    # What the target is: standard, sample_index, zero; "" where it is unknown.
    label_type: str = ""
    # Do batch norms see the batches of all ranks?
    sync_batch_norm: bool = False
    # Are there test phases?
    test_phases: bool = False
    seed: int = 0
    # Known once the dataset has been opened; before, 0 and none.
    num_train_samples: int = 0
    batch_sizes: frozenset[int] = frozenset()  # of training, over all ranks

    @property
    def global_batch_size(self) -> int:
        return self.world_size * self.batch_size_per_replica

    def head(self, name: str) -> Mapping[str, Any] | None:
        """The arguments of the first head module of that name; None if there is none."""
        return next((arguments for module, arguments in self.heads if module == name), None)

    def with_data(self, num_train_samples: int, batch_sizes: Iterable[int] = ()) -> RunFacts:
        sizes = frozenset(batch_sizes)
        return replace(self, num_train_samples=num_train_samples, batch_sizes=sizes)


def run_facts(config: DictConfig) -> RunFacts:
    """The facts that the config alone tells."""
    train = config.DATA.TRAIN
    return RunFacts(
        world_size=world_size(config),
        batch_size_per_replica=train.BATCHSIZE_PER_REPLICA,
        views_per_image=views_per_image(OmegaConf.to_container(train.TRANSFORMS)),  # type: ignore[arg-type]
        heads=tuple(_modules(OmegaConf.to_container(config.MODEL.HEAD.PARAMS))),
        collator=train.COLLATE_FUNCTION,
        label_type=train.LABEL_TYPE,
        test_phases=config.TEST_MODEL,
        seed=config.SEED_VALUE,
        sync_batch_norm=bool(config.MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN),
    )


def _modules(entries: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The pairs of HEAD.PARAMS, also nested ones. Malformed entries are reported elsewhere."""
    match entries:
        case [str(name), Mapping() as arguments, *_]:
            yield name.removesuffix("_fsdp"), arguments  # the same head, by VISSL's other name
        case [*inner]:
            for entry in inner:
                yield from _modules(entry)


def world_size(config: DictConfig) -> int:
    return int(config.DISTRIBUTED.NUM_NODES * config.DISTRIBUTED.NUM_PROC_PER_NODE)


def views_per_image(transforms: Iterable[Mapping[str, Any]]) -> int:
    """How many views the transforms make of one image.

    A transform that makes several says so: `count_views`, called with what it is made with.
    """
    views = 1
    for entry in transforms:
        name = TRANSFORMS.name_in(entry)
        if hasattr(TRANSFORMS.get(name), "count_views"):
            arguments = {k: v for k, v in entry.items() if k not in TRANSFORMS.entry_keys}
            views *= TRANSFORMS.maker(name, arguments, method="count_views")()
    return views
