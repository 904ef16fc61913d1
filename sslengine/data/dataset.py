"""The data set: a sample by its key, read, labelled and augmented.

A sample is VISSL's: each of its keys holds a list over the data sources, which a transform
such as ImgReplicatePil makes into a list over views:

    {"data": [image], "data_valid": [1], "data_idx": [17], "label": [3]}

An image that cannot be read is replaced by a grey one, and its data_valid is -1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch.utils.data import Dataset, get_worker_info

from sslengine.data.labels import label_columns, standard_labels
from sslengine.data.options import SplitOptions
from sslengine.data.seeding import SampleKey, seed_batch, seed_sample, streams_kept
from sslengine.data.sources.base import DataSource, build_sources, grey_image
from sslengine.data.subset import choose_rows
from sslengine.data.transforms.pipeline import Pipeline, Sample

T = TypeVar("T")


class Samples(list[Sample]):
    """The samples of a batch, and what its collator's draws depend on: seed and first key."""

    def __init__(self, samples: Iterable[Sample], seed: int, key: SampleKey) -> None:
        super().__init__(samples)
        self.seed, self.key = seed, key


def collate_seeded(collate: Callable[[Sequence[Sample]], T], samples: Samples) -> T:
    """What `collate` makes of the samples; its draws are the same in any process."""
    with _main_process_streams():
        seed_batch(samples.seed, samples.key)
        return collate(samples)


class SSLDataset(Dataset[Sample]):
    """The samples of one split, of which DATA_LIMIT may be a subset."""

    def __init__(self, options: SplitOptions, split: str, seed: int) -> None:
        self.sources: list[DataSource] = build_sources(options, split)
        standard = standard_labels(options, split, self.sources)
        total = len(self.sources[0])
        self.rows = choose_rows(options, split, total, standard[0] if standard else None)
        used = [column[self.rows] for column in standard]
        self.labels = label_columns(options, split, used, len(self.rows))
        self._seed = seed
        self._grey_side = options.DEFAULT_GRAY_IMG_SIZE
        self._transform = Pipeline(options.TRANSFORMS, f"config.DATA.{split}.TRANSFORMS")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: SampleKey) -> Sample:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[SampleKey]) -> Samples:
        """A batch of samples. The streams of the main process come out as they went in."""
        with _main_process_streams():
            return Samples(map(self._sample, keys), self._seed, keys[0])

    def _sample(self, key: SampleKey) -> Sample:
        seed_sample(self._seed, key)
        _, index = key
        row = int(self.rows[index])
        sample: Sample = {"data": [], "data_valid": [], "data_idx": [], "label": []}
        for source, labels in zip(self.sources, self.labels, strict=True):
            try:
                image, valid = source.image(row), 1
            except Exception:  # whatever a decoder may raise; DataFeed tells the user of it
                image, valid = grey_image(self._grey_side), -1
            label = labels[index]
            sample["data"].append(image)
            sample["data_valid"].append(valid)
            sample["data_idx"].append(index)
            sample["label"].append(torch.tensor(label) if labels.ndim > 1 else int(label))
        return self._transform(sample)

    def why_unreadable(self, index: int) -> str:
        """The file of a sample and what reading it raises, for a message."""
        row = int(self.rows[index])
        problems = (_problem(source, row) for source in self.sources)
        return next(filter(None, problems), f"{self.sources[0].path(row)} (now it can be read)")


def _main_process_streams() -> AbstractContextManager[None]:
    """Keeps the streams of the main process; a worker has no other use for its own."""
    return streams_kept() if get_worker_info() is None else nullcontext()


def _problem(source: DataSource, row: int) -> str:
    try:
        source.image(row)
    except Exception as error:
        return f"{source.path(row)} ({type(error).__name__}: {error})"
    return ""
