"""The data set: a sample by its key, read, labelled and augmented.

A sample is VISSL's: each of its keys holds a list over the data sources, which a transform
such as ImgReplicatePil makes into a list over views:

    {"data": [image], "data_valid": [1], "data_idx": [17], "label": [3]}

An image that cannot be read is replaced by a grey one (or with ENABLE_QUEUE_DATASET by that of
another sample), and its data_valid is -1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from sslengine.data import current_sample
from sslengine.data.classes import Classes, Column
from sslengine.data.labels import in_train_numbers, label_columns, shared, standard_labels
from sslengine.data.options import SplitOptions
from sslengine.data.plan.arrival import Arrival
from sslengine.data.plan.backend import build_backend
from sslengine.data.plan.plan import Plan
from sslengine.data.seeding import (
    SampleKey,
    generator,
    seed_batch,
    seed_sample,
    streams_kept,
)
from sslengine.data.shared import SharedArray
from sslengine.data.sources.base import DataSource, EncodedSource, build_sources
from sslengine.data.subset import Rows, choose_rows, part
from sslengine.data.transforms.pipeline import Pipeline, Sample
from sslengine.errors import readable

T = TypeVar("T")

# So many others are tried in place of an unreadable image.
STAND_INS = 16


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

    def __init__(
        self,
        options: SplitOptions,
        split: str,
        seed: int,
        backend: str = "pil",
        image_keys: Sequence[str] = (),
        classes: Sequence[Classes] = (),
    ) -> None:
        """
        backend: as config.DATA.AUGMENT_BACKEND has it.
        image_keys: where a batch holds images, if these may be uint8 until its `arrival`.
        classes: of TRAIN, for another split, whose labels get the same numbers.
        """
        self.sources: list[DataSource] = build_sources(options, split)
        found = standard_labels(options, split, self.sources)
        # Those of the run: TRAIN's, if they are known.
        self.classes = list(classes) or [Classes.of(each) for each in found]
        standard = in_train_numbers(found, classes, self.sources)
        total = len(self.sources[0])
        rows = choose_rows(options, split, total, standard[0] if standard else None)
        used = [part(column, rows) for column in standard]
        # What grows with the number of samples is shared with the loader workers.
        self._rows = rows if isinstance(rows, range) else SharedArray.of(rows)
        self._labels = shared(label_columns(options, split, used, len(rows)))
        # What LABEL_SOURCES has of the samples, for samplers; workers are not sent it.
        self.standard_labels = used
        self._seed = seed
        self._grey_side = options.DEFAULT_GRAY_IMG_SIZE
        self._other_for_unreadable = options.ENABLE_QUEUE_DATASET
        pipeline = Pipeline(options.TRANSFORMS, f"config.DATA.{split}.TRANSFORMS")
        self.plan = Plan(pipeline, build_backend(backend), image_keys)

    @property
    def worker_modules(self) -> tuple[str, ...]:
        """That take long to import."""
        sources = (type(each).__module__ for each in self.sources)
        return (*self.plan.backend.modules, *dict.fromkeys(sources))

    @property
    def rows(self) -> Rows:
        """The number of each sample in its sources."""
        return self._rows if isinstance(self._rows, range) else self._rows.array

    @property
    def labels(self) -> list[Column | range]:
        """The labels of all samples, for each source."""
        return [each if isinstance(each, range) else each.array for each in self._labels]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: SampleKey) -> Sample:
        """One sample by itself, to look at: its images are finished."""
        return self.plan.finished(self.__getitems__([key])[0])

    def __getitems__(self, keys: Sequence[SampleKey]) -> Samples:
        """A batch of samples. The streams of the main process come out as they went in."""
        with _main_process_streams():
            samples = Samples(map(self._sample, keys), self._seed, keys[0])
        self.plan.settle(samples)
        current_sample.end()
        return samples

    def _sample(self, key: SampleKey) -> Sample:
        seed_sample(self._seed, key)
        _, index = key
        current_sample.begin(index)
        row = int(self.rows[index])
        sample: Sample = {"data": [], "data_valid": [], "data_idx": [], "label": []}
        for source, labels in zip(self.sources, self.labels, strict=True):
            try:
                image, valid = self.read(source, row), 1
            except Exception:  # whatever a decoder may raise; DataFeed tells the user of it
                image, valid = self._stand_in(source, key), -1
            label = labels[index]
            sample["data"].append(image)
            sample["data_valid"].append(valid)
            sample["data_idx"].append(index)
            sample["label"].append(torch.tensor(label) if np.ndim(label) else int(label))
        return self.plan(sample)

    def read(self, source: DataSource, row: int) -> Any:
        """The image at the head of the TRANSFORMS; the back-end decodes it."""
        if isinstance(source, EncodedSource):
            return self.plan.read(source.encoded(row), source.decoder)
        return source.image(row)

    def arrival(self, device: torch.device) -> Arrival | None:
        """What is left to do with a batch when it comes to the device."""
        return self.plan.arrival(device)

    def name(self, index: int) -> str:
        """What to call a sample in a message: its file, where there is one."""
        return readable(self.sources[0].path(int(self.rows[index])))

    def _stand_in(self, source: DataSource, key: SampleKey) -> Any:
        """For an unreadable image: a grey one, or with ENABLE_QUEUE_DATASET that of another
        sample. Which one depends on the key alone, not on what this process has seen."""
        draw = generator(b"stand-in", self._seed, *key)
        for _ in range(STAND_INS if self._other_for_unreadable else 0):
            other = int(torch.randint(len(self), (), generator=draw))
            with suppress(Exception):  # unreadable as well
                return self.read(source, int(self.rows[other]))
        return source.stand_in(self._grey_side)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "standard_labels": []}

    def why_unreadable(self, index: int) -> str:
        """The file of a sample and what reading it raises, for a message."""
        row = int(self.rows[index])
        problems = (_problem(source, row) for source in self.sources)
        return next(filter(None, problems), f"{self.name(index)} (now it can be read)")


def _main_process_streams() -> AbstractContextManager[None]:
    """Keeps the streams of the main process; a worker has no other use for its own."""
    return streams_kept() if get_worker_info() is None else nullcontext()


def _problem(source: DataSource, row: int) -> str:
    try:
        source.image(row)
    except Exception as error:
        return readable(f"{source.path(row)} ({type(error).__name__}: {error})")
    return ""
