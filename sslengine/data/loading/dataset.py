"""The dataset: a sample by its key, read, labelled and augmented; the samples of a batch, collated.

A sample is VISSL's: each of its keys holds a list over the data sources, which a transform
such as ImgReplicatePil makes into a list over views:

    {"data": [image], "data_valid": [1], "data_idx": [17], "label": [3]}

FIELDS are read with the image and pass by the transforms: {..., "fields": {"caption": "a cat"}}.

A sample that cannot be read is replaced by another one, with that one's image, number and label.
Which one depends on (seed, epoch, number) alone. Where each sample must count once, as in tests,
it is left out of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from sslengine.data.augment.backend import build_backend
from sslengine.data.augment.pipeline import Pipeline
from sslengine.data.augment.tensors import Finish
from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import FIELDS, add_fields
from sslengine.data.batch.samplers import Place
from sslengine.data.decode.decoding import Decoder
from sslengine.data.manifest.classes import Classes, Column
from sslengine.data.manifest.index import SharedArray, share_values
from sslengine.data.manifest.subset import Rows
from sslengine.data.options import HoldOut, SplitOptions
from sslengine.data.seeding import (
    SampleKey,
    generator,
    seed_batch,
    seed_sample,
    streams_kept,
)
from sslengine.data.sources.base import DataSource, EncodedSource, build_sources
from sslengine.data.sources.labels import (
    choose_samples,
    known_classes,
    label_columns,
    share_columns,
    standard_labels,
    translate_to_train,
)
from sslengine.data.sources.stream import StreamSource
from sslengine.errors import DataError, readable

T = TypeVar("T")

# So many others are tried in place of an unreadable sample, and then those that follow the last.
STAND_INS, FOLLOWING = 16, 1000
# The number of the placeholder for a batch of which no sample could be read, and of none.
NO_SAMPLE = -1
# Where a batch has the numbers of the samples that could not be read, if there are any.
UNREADABLE = "unreadable"

# The number of the sample that this process is at. In a loader worker it lies in memory that is
# shared with the main process, which reports it when the worker dies or hangs.
_place: NDArray[np.int64] = np.full(1, NO_SAMPLE)


def note_places_in(places: torch.Tensor, worker: int) -> None:
    """From now on note the sample that this process is at in a worker's place."""
    global _place
    _place = places.numpy()[worker : worker + 1]


class SampleBatch(list[Sample]):
    """The samples of a batch, and what its collator's draws depend on: seed, first key, place."""

    def __init__(self, samples: Iterable[Sample], seed: int, keys: Sequence[SampleKey]) -> None:
        super().__init__(samples)
        self.seed, self.key = seed, keys[0]
        place: Place | None = getattr(keys, "place", None)
        self.place = place and place._replace(stream=(seed, *place.stream))
        self.unreadable: list[int] = []  # samples that could not be read


def collate_seeded(collate: Callable[[Sequence[Sample]], T], samples: SampleBatch) -> T:
    """Return what `collate` makes of the samples; its draws are the same in any process."""
    fields: list[Any] = [sample.pop(FIELDS, {}) for sample in samples]  # type: ignore[arg-type]
    with streams_kept():
        seed_batch(samples.seed, samples.key)
        batch = collate(samples)
    if batch is None:
        made_of = getattr(collate, "func", collate)  # with its parameters, a partial
        name = getattr(made_of, "__name__", type(made_of).__name__)
        raise DataError(f"the collator {name} returned None. Expected a batch, such as a dict.")
    add_fields(batch, fields)  # type: ignore[arg-type]
    if samples.unreadable and isinstance(batch, dict):
        batch[UNREADABLE] = torch.tensor(samples.unreadable)
    return batch


class SSLDataset(Dataset[Sample]):
    """The samples of one split, or the part of them that DATA_LIMIT and DATA_LIMIT_SAMPLING use."""

    def __init__(
        self,
        options: SplitOptions,
        split: str,
        seed: int,
        backend: str = "pil",
        image_keys: Sequence[str] = (),
        classes: Sequence[Classes] = (),
        replace: bool = True,
        hold_out: HoldOut | None = None,
    ) -> None:
        """
        replace: an unreadable sample is replaced by another; otherwise it is left out.
        backend: as config.DATA.AUGMENT_BACKEND has it.
        image_keys: where a batch holds images, if these may be uint8 until `finish_on`.
        classes: of TRAIN, for another split, whose labels get the same numbers.
        hold_out: config.DATA.HOLD_OUT.
        """
        hold_out = hold_out or HoldOut()
        stored = hold_out.read_as(split)
        self.sources: list[DataSource] = build_sources(options, stored)
        first = self.sources[0]
        self.stream = first if isinstance(first, StreamSource) else None
        found = standard_labels(options, stored, self.sources, hold_out.STRATIFIED)
        # Those of the run: TRAIN's, if they are known.
        self.classes = list(classes) or known_classes(found, self.sources)
        standard = translate_to_train(found, classes, self.sources)
        rows, used = choose_samples(options, split, hold_out, self.sources, found, standard)
        # What grows with the number of samples is shared with the loader workers.
        self._rows = rows if isinstance(rows, range) else SharedArray.share(rows)
        kinds = label_columns(options, split, used, len(rows)) if not self.stream else []
        self._labels = share_columns(kinds)
        # What LABEL_SOURCES has of the samples, for samplers; workers are not sent it.
        self.standard_labels = used
        self._seed = seed
        self._grey_side = options.DEFAULT_GRAY_IMG_SIZE
        self._where, self._replace = f"config.DATA.{split}", replace
        self._decoder = Decoder.build(options, split)
        self._fields = {name: self._open_field(name) for name in options.FIELDS}
        self._unreadable: list[int] = []  # of the batch that is being made
        self.backend = build_backend(backend)
        where = f"config.DATA.{split}.TRANSFORMS"
        self.pipeline = Pipeline(options.TRANSFORMS, where, image_keys, options.limits)

    def _open_field(self, name: str) -> Any:
        where = f"{self._where}.FIELDS"
        values = self.sources[0].column(name, where)
        missing = (row for row, each in enumerate(values) if each is None)
        if isinstance(values, list) and (row := next(missing, None)) is not None:
            raise DataError(
                f"{where}: {readable(self.sources[0].path(row))} has no {name!r}. Leave it out."
            )
        return share_values(values)

    def distribute(self, places: int) -> None:
        """Give an epoch of a stream so many places."""
        self._rows = range(places)

    @property
    def worker_modules(self) -> tuple[str, ...]:
        """Name the modules that loader workers need and that take long to import."""
        sources = (type(each).__module__ for each in self.sources)
        return (self.backend.module, *dict.fromkeys(sources))

    @property
    def rows(self) -> Rows:
        """Return the number of each sample in its sources."""
        return self._rows if isinstance(self._rows, range) else self._rows.array

    @property
    def labels(self) -> list[Column | range]:
        """Return the labels of all samples, for each source."""
        return [each if isinstance(each, range) else each.array for each in self._labels]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: SampleKey) -> Sample:
        """Return one sample by itself, to look at: its images are finished."""
        return self.pipeline.finished(self.__getitems__([key])[0])

    def __getitems__(self, keys: Sequence[SampleKey]) -> SampleBatch:
        """Return a batch of samples. The global streams come out as they went in."""
        with streams_kept():
            if self.stream:
                self.stream.fetch(self._seed, keys[0][0], [index for _, index in keys])
            made = [self._sample(key) for key in keys]
            samples = SampleBatch([each for each in made if each is not None], self._seed, keys)
            if not samples:
                samples.append(self._nothing(keys[0]))
        samples.unreadable, self._unreadable = self._unreadable, []
        self.pipeline.settle(samples)
        _place[0] = NO_SAMPLE
        return samples

    def _sample(self, key: SampleKey) -> Sample | None:
        """Return None where it cannot be read, and is left out."""
        seed_sample(self._seed, key)
        _place[0] = key[1]
        images = self._read_all(key[1])
        if images is not None:
            return self._augment(*images, key[1])
        self._unreadable.append(key[1])
        return self._take_another(key) if self._replace else None

    def _augment(self, images: list[Any], fields: dict[str, Any], index: int) -> Sample:
        labels = (
            [self.stream.label(index) if self.stream.reads_labels else 0]
            if self.stream
            else [labels[index] for labels in self.labels]
        )
        sample: Sample = {
            "data": images,
            "data_valid": [1] * len(images),
            "data_idx": [index] * len(images),
            "label": [torch.tensor(each) if np.ndim(each) else int(each) for each in labels],
        }
        sample = self.pipeline(sample)
        return {**sample, FIELDS: fields} if fields else sample  # type: ignore[dict-item]

    def _read_all(
        self, index: int, patient: bool = True
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """Return an image of each source, and the fields; None if one cannot be read.

        patient: retry.
        """
        row = int(self.rows[index])
        try:
            images = [self.read(source, row, patient) for source in self.sources]
            return images, self._read_fields(row)
        except Exception:  # decoders raise many kinds; DataFeed reports it
            return None

    def _read_fields(self, row: int) -> dict[str, Any]:
        fields = {name: values[row] for name, values in self._fields.items()}
        for name, value in fields.items():
            if value is None:
                raise ValueError(f"it has no {name!r}")
            if isinstance(value, bytes):
                fields[name] = self._decoder.stored(value)
        return fields

    def _take_another(self, key: SampleKey) -> Sample:
        """Return another sample, with its number and label, in place of an unreadable one.

        Which one depends on the key alone, not on what this process has seen.
        """
        draw = generator(b"stand-in", self._seed, *key)
        among = self.stream.at_hand if self.stream else range(len(self))
        count = len(among)
        places = [int(torch.randint(count, (), generator=draw)) for _ in range(STAND_INS + 1)]
        following = (places[-1] + step for step in range(min(count, FOLLOWING)))
        tries = [
            *((among[place], True) for place in places),
            *((among[place % count], False) for place in following),
        ]
        for other, patient in tries:
            images = self._read_all(other, patient)
            if images is not None:
                return self._augment(*images, other)
        raise DataError(
            f"{self._where}: none of the first {len({number for number, _ in tries} | {key[1]})} "
            f"images can be read. One of them: {self.why_unreadable(key[1])}"
        )

    def _nothing(self, key: SampleKey) -> Sample:
        """Return a grey image without a number, which counts nowhere, for a batch of which all is
        left out."""
        fields: dict[str, Any] = {}  # of the first of a hundred that can be read, as the image is
        for row in range(min(len(self.sources[0]), 100)):
            with suppress(Exception):
                fields = self._read_fields(row)
                break
        seed_sample(self._seed, key)
        images = [source.stand_in(self._grey_side) for source in self.sources]
        sample = self._augment(images, fields, key[1])
        count = len(sample["data_idx"])
        return {**sample, "data_idx": [NO_SAMPLE] * count, "data_valid": [-1] * count}

    def read(self, source: DataSource, row: int, patient: bool = True) -> Any:
        """Return the image at the head of the TRANSFORMS."""
        if isinstance(source, EncodedSource):
            encoded = source.encoded(row) if patient else source.read(row)
            return self.backend.decode(encoded, source.decoder)
        return self.backend.take(source.image(row))

    def finish_on(self, device: torch.device) -> Finish | None:
        """Return the rest of the work on a batch, for when it comes to the device."""
        return self.pipeline.finish_on(device)

    def name(self, index: int) -> str:
        """Return what to call a sample in a message: its file, where there is one."""
        return readable(self.sources[0].path(int(self.rows[index])))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "standard_labels": []}

    def why_unreadable(self, index: int) -> str:
        """Return the file of a sample and what reading it raises, for a message."""
        if self.stream:  # it would have to be read up to there
            return self.name(index)
        row = int(self.rows[index])
        for source in self.sources:
            try:
                source.image(row)
                self._read_fields(row)
            except Exception as error:
                return readable(f"{source.path(row)} ({type(error).__name__}: {error})")
        return f"{self.name(index)} (now it can be read)"
