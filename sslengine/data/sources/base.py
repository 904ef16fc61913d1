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
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.decode.decoding import Decoder
from sslengine.data.decode.files import NotRegularError
from sslengine.data.manifest.classes import Column, find_unlabelled
from sslengine.data.options import OF_ENCODED_SOURCES, SplitOptions
from sslengine.errors import DataError, readable
from sslengine.registry import DATA_SOURCES

# What another attempt to read does not change.
FINAL = (
    FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, NotRegularError,
)  # fmt: skip


class DataSource(ABC):
    # Does it read what DATA_PATHS or DATASET_NAMES point to?
    needs_path: ClassVar[bool] = False
    # Of OF_ENCODED_SOURCES (data/options.py) those options that it reads. None: unknown.
    reads: ClassVar[tuple[str, ...] | None] = None
    # What makes images of files or arrays as the split's options say, if that is needed.
    decoder: Decoder | None = None
    # Can it only be read from one end to the other? See stream.py.
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
        """Read the image, RGB. Any exception marks the sample as unreadable."""

    def stand_in(self, side: int) -> Any:
        """Replace an image that cannot be read: grey, of this size and of the others' type; where
        IMAGE_MODE is stored, the type of the first of a hundred that can be read.
        """
        mode = self.decoder.mode if self.decoder else "RGB"
        for index in range(min(len(self), 100) if mode == "stored" else 0):
            with suppress(Exception):
                image: Any = self.image(index)
                if isinstance(image, Image.Image):
                    mode = image.mode
                    break
                level = 128 if image.dtype == np.uint8 else 0
                return np.full((side, side, image.shape[2]), level, image.dtype)
        return grey_image(side) if mode == "stored" else grey_image(side).convert(mode)

    def label(self, index: int) -> Any:
        """Return the class of an image, or a row of indicators of the classes that it shows.

        A source that knows it has this, or `labels`.
        """
        if type(self).labels is not DataSource.labels:
            return self.labels()[index]
        raise DataError(f"{self.where}: the source {type(self).__name__} has no labels.")

    def labels(self) -> NDArray[np.generic]:
        """Return the classes of all images; of several each a matrix: 1, 0, or -1 for not known."""
        found = np.array([self.label(index) for index in range(len(self))])
        return found.astype(np.int64) if found.dtype.kind in "iub" or not found.size else found

    def expect_labels(self, labels: Column, advice: str) -> Column:
        """Return the labels; DataError where some are missing.

        advice: what those images have instead, and what to do.
        """
        if (missing := find_unlabelled(labels)).size:
            raise DataError(
                f"{self.where}: labels are asked for, and {missing.size} of {len(self)} images, "
                f"the first of them {readable(self.path(int(missing[0])))}, {advice}, or train "
                f"without LABEL_SOURCES."
            )
        return labels

    def mask(self, index: int) -> NDArray[np.generic]:
        """Return the class of each pixel of an image, height x width, if the source knows it."""
        raise DataError(f"{self.where}: {type(self).__name__} has no masks.")

    def column(self, name: str, where: str) -> Sequence[Any]:
        """Return a value for each image (FIELDS, GROUP_COLUMN); bytes are those of an image file.

        where: the key that names it.
        """
        raise DataError(
            f"{where}: {type(self).__name__} has no {name!r}; expected a source with columns: a "
            f"table (csv_filelist), a huggingface_dataset, a webdataset."
        )

    def path(self, index: int) -> str:
        """Name an image in a message: its file, where there is one."""
        return f"image {index} of {type(self).__name__}"

    def files_of(self, rows: NDArray[np.int64]) -> Iterable[str] | None:
        """Name the files that these images are read from: none of drawn ones. None: unknown."""
        return None

    def left_out(self) -> Sequence[str]:
        """Name the files without an image that can be read; a warning has named the reason."""
        return ()

    def relative_path(self, index: int) -> str:
        """Return `path` below the source's folder: the same wherever that is."""
        path = self.path(index)
        return path.removeprefix(os.path.join(self.root, "")) if self.root else path


class EncodedSource(DataSource):
    """Images that are stored encoded."""

    reads: ClassVar[tuple[str, ...] | None] = OF_ENCODED_SOURCES

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self.decoder: Decoder = Decoder.build(options, split)
        self._retries, self._wait = options.READ_RETRIES, options.READ_RETRY_WAIT

    @abstractmethod
    def read(self, index: int) -> bytes:
        """Read the bytes of the image's file. At an OSError it is called again (READ_RETRIES)."""

    @final
    def encoded(self, index: int) -> bytes:
        """Read the image's file, again after a longer and longer wait if that fails.

        Any exception marks the sample as unreadable.
        """
        tries = 0
        while True:
            try:
                return self.read(index)
            except FINAL:
                raise
            except OSError as error:
                if tries == self._retries:
                    waited = self._wait * (2**tries - 1)
                    told = f"{error.strerror or error} (tried {tries + 1} times in {waited:g} s)"
                    raise OSError(error.errno, told) from error
            time.sleep(self._wait * 2**tries)
            tries += 1

    @final
    def image(self, index: int) -> Image.Image:
        return self.decoder(self.encoded(index))


def build_sources(options: SplitOptions, split: str) -> list[DataSource]:
    """Build the sources of a split, which all hold as many images: a sample has one of each."""
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
    return Image.new("RGB", (side, side), (128, 128, 128))
