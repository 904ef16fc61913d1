"""What a data source is: images by number, and labels where it has them.

    @register_data_source("my_source")
    class MySource(DataSource):
        def __init__(self, options, split, position=0): ...
        def __len__(self): ...
        def image(self, index): ...        # a PIL image, RGB; raises when it cannot be read

With `options=Cls` the fields of that dataclass are keys of DATA.TRAIN and DATA.TEST where the
source is chosen, and `options` has them.

A source of encoded images (JPEG, PNG ...) is an EncodedSource and has `read` in place of `image`:
then a back-end may decode the bytes its own way.

A source is pickled into every loader worker: keep what it holds small. It draws no
random numbers except from its own generators, seeded by the index.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.decode.decoding import Decoder
from sslengine.data.options import OF_ENCODED_SOURCES, SplitOptions
from sslengine.data.sources.retries import retried
from sslengine.errors import DataError
from sslengine.registry import DATA_SOURCES

# Twice as many images as the largest folder that is measured (docs/data_sources.md).
MOST_GENERATED = 20_000_000


class DataSource(ABC):
    # Does it read what DATA_PATHS or DATASET_NAMES point to?
    needs_path: ClassVar[bool] = False
    # Of OF_ENCODED_SOURCES (data/options.py) those options that it reads. None: unknown.
    reads: ClassVar[tuple[str, ...] | None] = None
    # Can it only be read from one end to the other? See sources/stream.py.
    is_stream: ClassVar[bool] = False
    # How many classes its own labels have; 0: it has no labels.
    num_classes: int = 0
    # What these are called, by number; empty where labels are numbers in their own right.
    class_names: Sequence[str] = ()
    # The folder that all paths begin with, if there is one.
    root: Path | str = ""

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        """
        split: TRAIN or TEST.
        position: which entry of DATA_SOURCES, DATA_PATHS ... is this source's.
        """
        self.where = f"config.DATA.{split}.DATA_SOURCES.{position}"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """The image, RGB. Any exception marks the sample as unreadable."""

    def stand_in(self, side: int) -> Any:
        """Replaces an image that cannot be read: grey, of the size and type of the others."""
        return grey_image(side)

    def label(self, index: int) -> Any:
        """The class of an image, or a row of indicators of the classes that it shows. A source
        that knows it has this, or `labels`."""
        if type(self).labels is not DataSource.labels:
            return self.labels()[index]
        raise DataError(f"{self.where}: the source {type(self).__name__} has no labels.")

    def labels(self) -> NDArray[np.generic]:
        """The classes of all images; of several each a matrix: 1, 0, or -1 for not known."""
        found = np.array([self.label(index) for index in range(len(self))])
        return found.astype(np.int64) if found.dtype.kind in "iub" or not found.size else found

    def mask(self, index: int) -> NDArray[np.generic]:
        """The class of each pixel of an image, height x width, if the source knows it."""
        raise DataError(f"{self.where}: {type(self).__name__} has no masks.")

    def column(self, name: str, where: str) -> Sequence[Any]:
        """A value for each image, if the source has columns. where: the key that names it."""
        raise DataError(
            f"{where}: {type(self).__name__} has no columns; expected a table (csv_filelist) or a "
            f"huggingface_dataset."
        )

    def path(self, index: int) -> str:
        """What to call an image in a message: its file, where there is one."""
        return f"image {index} of {type(self).__name__}"

    def files_of(self, rows: NDArray[np.int64]) -> Iterable[str] | None:
        """Those that these images are read from; empty if they are drawn. None: it is not known."""
        return None

    def left_out(self) -> Sequence[str]:
        """Files without an image that can be read; a warning has named the reason."""
        return ()

    def relative_path(self, index: int) -> str:
        """`path` below the source's folder: the same wherever that is."""
        path = self.path(index)
        return path.removeprefix(os.path.join(self.root, "")) if self.root else path


class GeneratedSource(DataSource):
    """Draw images by number: more than by default if DATA_LIMIT asks for them."""

    reads = ()
    default_lengths: ClassVar[Mapping[str, int]]  # by split

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        wanted = options.DATA_LIMIT + options.DATA_LIMIT_SAMPLING.SKIP_NUM_SAMPLES
        if wanted > MOST_GENERATED:
            where, most = f"config.DATA.{split}.DATA_LIMIT", MOST_GENERATED
            raise DataError(f"{where}: requires {wanted} samples; at most {most} are generated.")
        self._length = max(self.default_lengths[split], wanted)

    def __len__(self) -> int:
        return self._length

    def files_of(self, rows: NDArray[np.int64]) -> tuple[str, ...]:
        return ()


class EncodedSource(DataSource):
    """Images that are stored encoded."""

    reads: ClassVar[tuple[str, ...] | None] = OF_ENCODED_SOURCES

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self.decoder = Decoder.of(options, split)
        self._retries, self._wait = options.READ_RETRIES, options.READ_RETRY_WAIT

    @abstractmethod
    def read(self, index: int) -> bytes:
        """The bytes of the image's file. At an OSError it is called again (READ_RETRIES)."""

    @final
    def encoded(self, index: int) -> bytes:
        """The bytes of the image's file. Any exception marks the sample as unreadable."""
        return retried(partial(self.read, index), self._retries, self._wait)

    @final
    def image(self, index: int) -> Image.Image:
        return self.decoder(self.encoded(index))

    def stand_in(self, side: int) -> Any:
        return such_as(self, self.decoder.mode, side)


def such_as(source: DataSource, mode: str, side: int) -> Any:
    """A grey image of this IMAGE_MODE; where that is stored, as the first of the first hundred
    images that can be read: the same in each worker.
    """
    if mode != "stored":
        return grey_image(side).convert(mode)
    for index in range(min(len(source), 100)):
        with suppress(Exception):
            image: Any = source.image(index)
            if isinstance(image, Image.Image):
                return grey_image(side).convert(image.mode)
            level = 128 if image.dtype == np.uint8 else 0
            return np.full((side, side, image.shape[2]), level, image.dtype)
    return grey_image(side)


def build_sources(options: SplitOptions, split: str) -> list[DataSource]:
    """The sources of a split, which all hold as many images: a sample has one of each."""
    where = f"config.DATA.{split}.DATA_SOURCES"
    if not options.DATA_SOURCES:
        raise DataError(
            f"{where} is empty. Name a source, for example [disk_folder] together with "
            f"config.DATA.{split}.DATA_PATHS=[/path/to/images]."
        )
    sources: list[DataSource] = [
        DATA_SOURCES.get(name, f"{where}.{position}")(options, split, position)
        for position, name in enumerate(options.DATA_SOURCES)
    ]
    sizes = [len(source) for source in sources]
    if len(set(sizes)) > 1:
        raise DataError(f"{where}: the sources must hold equally many images, not {sizes}.")
    return sources


def grey_image(side: int) -> Image.Image:
    """Replaces an image that cannot be read."""
    return Image.new("RGB", (side, side), (128, 128, 128))
