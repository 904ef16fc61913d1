"""Are samples the same when they are made again? Asked of the user's own parts alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_leaves

from sslengine.config.components import named_entries
from sslengine.data.augment.transform import Sample
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


def warn_if_not_repeated(
    dataset: SSLDataset,
    collate: Callable[[Sequence[Sample]], Any],
    options: SplitOptions,
    where: str,
    copy: bool,
) -> None:
    """copy: made by a copy, as workers get: objects may open files that cannot be sent to them."""
    parts = [*_of_users(options)]
    if not parts or dataset.stream or len(dataset) < len(KEYS):
        return
    with suppress(Exception):  # the run reports what fails
        maker = ForkingPickler.loads(ForkingPickler.dumps(dataset)) if copy else dataset
        first, again = (collate_seeded(collate, maker.__getitems__(KEYS)) for _ in range(2))
        if not _are_equal(first, again):
            logger.warning(WARNING, where, listing(parts))


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
