"""Are samples the same when they are made again? Asked of the user's own parts alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_leaves

from sslengine.config.components import named_entries
from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import Batch
from sslengine.data.loading.dataset import SSLDataset, collate_seeded
from sslengine.data.options import SplitOptions
from sslengine.errors import listing
from sslengine.registry import COLLATORS, DATA_SOURCES, TRANSFORMS, Registry

logger = logging.getLogger(__name__)

KEYS = ((0, 0), (0, 1))  # of epoch 0
_OURS = ("sslengine.", "torchvision.")
WARNING = (
    "%s: samples differed when they were made again with the same seed (%s). Random numbers come "
    "from a generator that is not seeded for each sample, such as one that an object keeps, or "
    "something depends on the time or on earlier calls. Loader workers then repeat each other's "
    "numbers, and a run that resumes has others. Draw from random, numpy.random or torch, or make "
    "the generator in the call: np.random.default_rng(np.random.randint(2**32))."
)


class RepeatCheck:
    """Makes two samples twice, in the process that makes samples, and compares them.

    That is a worker, if there are any: it has a copy of the objects, which may open files, and
    WORKER_TIMEOUT ends a part that hangs there. The main process logs the warning.
    """

    def __init__(self, parts: Sequence[str], where: str) -> None:
        self.parts, self.where = parts, where
        self._differ = torch.zeros(1, dtype=torch.uint8).share_memory_()

    def make(self, dataset: SSLDataset, collate: Callable[[Sequence[Sample]], Any]) -> None:
        with suppress(Exception):  # the run reports what fails
            first, again = (collate_seeded(collate, dataset.__getitems__(KEYS)) for _ in range(2))
            self._differ.fill_(not _are_equal(first, again))

    def heard(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches; the first brings the warning, if there is one."""
        for batch in batches:
            if self._differ.item():
                self._differ.zero_()
                logger.warning(WARNING, self.where, listing(self.parts))
            yield batch


def repeat_check(dataset: SSLDataset, options: SplitOptions, where: str) -> RepeatCheck | None:
    """None where all parts ship with the engine, or samples have no keys."""
    parts = [*_of_users(options)]
    possible = parts and not dataset.stream and len(dataset) >= len(KEYS)
    return RepeatCheck(parts, where) if possible else None


def _of_users(options: SplitOptions) -> Iterator[str]:
    named = (
        (DATA_SOURCES, options.DATA_SOURCES),
        (TRANSFORMS, options.TRANSFORMS),
        (COLLATORS, options.COLLATE_FUNCTION),
    )
    for registry, value in named:
        for name in _names(registry, value):
            if not str(getattr(registry.get(name), "__module__", "")).startswith(_OURS):
                yield name


def _names(registry: Registry[Any], value: Any) -> Iterator[str]:
    """Those of the entries, and of entries in their arguments."""
    for name, arguments in named_entries(registry, value):
        yield name
        for each in arguments.values():
            if isinstance(each, list):
                yield from _names(registry, [one for one in each if isinstance(one, Mapping)])


def _are_equal(first: Any, again: Any) -> bool:
    pairs = zip(tree_leaves(first), tree_leaves(again), strict=True)
    return all(torch.equal(*map(_values, pair)) for pair in pairs)


def _values(leaf: Any) -> Tensor:
    """Those of an image; none of other objects."""
    if isinstance(leaf, (Image.Image, np.ndarray)):
        leaf = torch.from_numpy(np.array(leaf))
    return leaf.nan_to_num() if isinstance(leaf, Tensor) else torch.empty(0)
