"""Sources that can only be read from one end to the other: shards on a server, a hub's datasets.

An epoch is LENGTH samples. Each rank reads LANES lanes, as many as it has loader workers, and
takes its batches from them in turn: step t of rank r comes from lane t % LANES. A lane reads its
parts (shards) one after another, in an order that (seed, epoch) decide, and again from the first if
they end before the epoch does. SHUFFLE samples at a time are shuffled.

So a sample is found by its place in the epoch, as in sources with random access: samplers have no
state, and a run that resumes within an epoch reads its lanes again up to that place, without
decoding images. In a worker a place that follows the last one costs nothing.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from http.client import HTTPException
from itertools import chain, islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sslengine.data.manifest.classes import read_number
from sslengine.data.manifest.index import ReadLater
from sslengine.data.options import SplitOptions, StreamOptions, own
from sslengine.data.seeding import generator
from sslengine.data.sources.base import FINAL, EncodedSource
from sslengine.errors import DataError, SSLEngineError, nearest, readable
from sslengine.trust import expect_trust

log = logging.getLogger("sslengine")


class Streamed(NamedTuple):
    """A sample as it is stored."""

    name: str
    content: bytes
    label: Any = None
    fields: Mapping[str, Any] = {}


class Lanes(NamedTuple):
    """How the places of an epoch are distributed: batch after batch, over ranks and lanes."""

    batch: int = 1
    ranks: int = 1
    of_a_rank: int = 1

    def find(self, index: int) -> tuple[int, int]:
        """Return the lane of a place in the epoch, and the place in it."""
        batch, within = divmod(index, self.batch)
        step, rank = divmod(batch, self.ranks)
        turn, lane = divmod(step, self.of_a_rank)
        return rank * self.of_a_rank + lane, turn * self.batch + within

    @property
    def total(self) -> int:
        return self.ranks * self.of_a_rank


class _Reader:
    """A lane that has been read up to a place."""

    def __init__(self, key: tuple[int, ...], samples: Iterator[Streamed]) -> None:
        self.key, self.samples, self.place = key, samples, 0

    def next(self) -> Streamed:
        self.place += 1
        return next(self.samples)


class StreamSource(EncodedSource):
    """A subclass has `parts` and `part`."""

    needs_path = True
    is_stream: ClassVar[bool] = True
    # How many can be read independently of each other.
    parts: int

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        chosen = own(options, StreamOptions)
        self.fields = options.FIELDS
        self._length, self._shuffle, self._split = chosen.LENGTH, chosen.SHUFFLE, split
        self.where = f"config.DATA.{split}.DATA_PATHS.{position}"
        if not chosen.LENGTH:
            raise DataError(
                f"config.DATA.{split}.LENGTH: a stream does not say how many images it holds. Set "
                f"the number of images of an epoch."
            )
        self.reads_labels = options.LABEL_TYPE == "standard" and bool(options.LABEL_SOURCES)
        self._label_column, self._given_classes = chosen.LABEL_COLUMN, chosen.CLASSES
        self.lanes = Lanes()
        self._reader: _Reader | None = None
        self._held: Mapping[int, Streamed] = {}

    @abstractmethod
    def part(self, number: int) -> Iterator[Streamed]:
        """Read its samples, in order.

        OSError and HTTPException: it is read again from its beginning, and what came before is
        passed over.
        """

    def know_classes(self, names: Sequence[str] = ()) -> None:
        """Say which classes there are: CLASSES, or the names that the data has, by number."""
        given = self._given_classes
        self.class_names = tuple(map(str, given)) if isinstance(given, list) else tuple(names)
        self.num_classes = len(self.class_names) or (given if isinstance(given, int) else 0)
        if not self.num_classes:
            raise DataError(
                f"config.DATA.{self._split}.CLASSES: the labels of a stream are asked for. Give "
                f"the names of the classes in the order of their numbers, or how many there are."
            )
        self._numbers = {name: number for number, name in enumerate(self.class_names)}

    def label(self, index: int) -> int:
        """Return the class at a place that `fetch` has read."""
        sample = self._held[index]
        name, number = str(sample.label).strip(), read_number(sample.label)
        if name in self._numbers:
            return self._numbers[name]
        if number is not None and number < self.num_classes:
            return number
        raise DataError(
            f"config.DATA.{self._split}.CLASSES: {readable(sample.name)} has the label "
            f"{readable(name)[:80]!r}; expected one of {self.num_classes} classes. "
            f"{nearest(name, self.class_names)}".rstrip()
        )

    def column(self, name: str, where: str) -> Sequence[Any]:
        return ReadLater(partial(self._field, name), len(self))

    def _field(self, name: str, index: int) -> Any:
        return self._held[index].fields[name]

    def expect_trust(self, address: str) -> None:
        """Refuse an address that a config from elsewhere names."""
        expect_trust(f"{address!r} may be read from the network", self.where, address)

    def distribute(self, batch: int, ranks: int, workers: int, lanes: int) -> Lanes:
        """Share the places out. lanes: LANES; 0: as many as workers, or as there are parts."""
        if self.parts < ranks * max(1, lanes):
            raise DataError(
                f"{self.where}: it has {self.parts} parts (shards) for {ranks} processes with "
                f"{max(1, lanes)} lanes each, and every lane needs one. Use fewer processes or "
                f"LANES, or more shards."
            )
        self.lanes = Lanes(batch, ranks, lanes or min(max(1, workers), self.parts // ranks))
        return self.lanes

    def __len__(self) -> int:
        return self._length

    def fetch(self, seed: int, epoch: int, places: Sequence[int]) -> None:
        """Read these places of the epoch, for `read`."""
        self._held = {}  # frees the last ones
        held = {}
        for index in places:
            lane, place = self.lanes.find(index)
            key = (seed, epoch, lane)
            reader = self._reader
            if reader is None or reader.key != key or reader.place > place:
                reader = self._reader = _Reader(key, self._lane(*key))
            while reader.place < place:
                reader.next()
            held[index] = reader.next()
        self._held = held

    @property
    def at_hand(self) -> Sequence[int]:
        """Return the places that `read` can read without a delay."""
        return list(self._held)

    def read(self, index: int) -> bytes:
        if index not in self._held:
            self.fetch(0, 0, [index])
        return self._held[index].content

    def path(self, index: int) -> str:
        if index in self._held:
            return self._held[index].name
        return f"image {index} of the epoch of {self.where}"

    def files_of(self, rows: NDArray[np.int64]) -> list[str]:
        """Name none: of those on a server it is not known whether they change."""
        return []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_held": {}}

    def _lane(self, seed: int, epoch: int, lane: int) -> Iterator[Streamed]:
        """Read the samples of a lane, without an end: after the last part comes the first again."""
        draw = generator(b"parts", seed, epoch)
        order = torch.randperm(self.parts, generator=draw).tolist()
        parts, blocks = order[lane :: self.lanes.total], 0
        while True:
            stored = chain.from_iterable(map(self._patiently, parts))
            before = blocks
            while block := list(islice(stored, self._shuffle)):
                draw = generator(b"block", seed, epoch, lane, blocks)
                blocks += 1
                for number in torch.randperm(len(block), generator=draw).tolist():
                    yield block[number]
            if blocks == before:
                raise DataError(f"{self.where}: no image in {len(parts)} of its parts (shards).")

    def _patiently(self, number: int) -> Iterator[Streamed]:
        """Read a part, each sample once, although its reading may fail."""
        given, tries = 0, 0
        while True:
            try:
                for sample in islice(self.part(number), given, None):
                    given, tries = given + 1, 0
                    yield sample
                return
            except SSLEngineError:
                raise
            except (OSError, HTTPException) as error:
                if tries >= self._retries or isinstance(error, FINAL):
                    raise DataError(
                        f"{self.where}: part {number} cannot be read (tried {tries + 1} times): "
                        f"{type(error).__name__}: {error}"
                    ) from error
                time.sleep(self._wait * 2**tries)
                tries += 1
