"""`config.DATA`: what is read, how it is augmented, how it reaches the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sslengine.config.facts import why_not
from sslengine.config.ranges import at_least, choice, share
from sslengine.config.sections import hosts, join, named, section
from sslengine.data.pixel_values import PixelRange, parse_colour
from sslengine.registry import COLLATORS, DATA_SOURCES, TRANSFORMS

C = TypeVar("C")

# Options of a split that have an effect with some sources alone; see DataSource.reads. Not the
# limit MAX_IMAGE_PIXELS, which harms none, and which earlier versions wrote for all.
OF_ENCODED_SOURCES = (
    "IMAGE_MODE", "PIXEL_RANGE", "IMAGE_PAGE", "EXIF_ROTATION", "READ_RETRIES", "READ_RETRY_WAIT",
)  # fmt: skip


@dataclass
class DataLimitSampling:
    # The order in which DATA_LIMIT takes samples.
    SEED: int = 0
    # As many samples of each class.
    IS_BALANCED: bool = False
    # Skip so many of the shuffled samples first: disjoint subsets under one seed.
    SKIP_NUM_SAMPLES: int = 0
    # Of what DATA_LIMIT leaves use this share of each class, one image at the least; 0: all.
    SHARE: float = share(0.0)
    # Use the images that this file names: a name in each line, or a table with a column `path`.
    LIST: str = ""

    def check(self) -> Iterator[str]:
        if self.SHARE and self.LIST:
            yield "LIST: has no effect with SHARE, which draws the images. Set one of them."


@dataclass
class OffByDefault:
    # Use this sampler.
    ENABLED: bool = False


@dataclass
class StratifiedSampler(OffByDefault):
    """Batches of a few classes; see samplers.py."""

    # Of each rank's batch, which they share evenly.
    CLASSES_PER_BATCH: int = at_least(1, 2)
    # Batches of an epoch.
    STEP_PER_EPOCH: int = at_least(1, 1250)
    # No two ranks have a class in common.
    UNIQUE_CLASSES: bool = False


@dataclass
class PowerLawSampler(OffByDefault):
    """A few classes often, most seldom; see samplers.py."""

    # Below 0: by the square root of a class's size.
    POWER: float = 1.0


@dataclass
class IndexOptions:
    """Of sources that look through folders, lists and archives."""

    # Keep what was found in folders, lists and archives in ~/.cache/sslengine ($SSLENGINE_CACHE),
    # and use it as long as they do not change.
    CACHE_INDEX: bool = True


@dataclass
class PathOptions(IndexOptions):
    """Of sources that read a list of paths."""

    # On the paths of a list: this is removed from the front,
    REMOVE_IMG_PATH_PREFIX: str = ""
    # ... and this is put there.
    NEW_IMG_PATH_PREFIX: str = ""


@dataclass
class ArrayOptions:
    """Of arrays in a file."""

    # What holds the image.
    IMAGE_COLUMN: str = ""
    # What holds the label.
    LABEL_COLUMN: str = ""


@dataclass
class ColumnOptions(ArrayOptions):
    """Of tables and datasets with columns."""

    # What separates the classes of an image that has several, for example "|".
    LABEL_SEPARATOR: str = ""


@dataclass
class TableOptions(ColumnOptions, PathOptions):
    """Of tables whose images are files."""

    # A column for each class, with 1, 0, or -1 or nothing for unknown.
    LABEL_COLUMNS: list[str] = field(default_factory=list)

    def check(self) -> Iterator[str]:
        columns = self.LABEL_COLUMNS
        if len({*columns}) < len(columns):
            yield f"LABEL_COLUMNS: a column is listed twice: {', '.join(columns)}."
        for key in ("LABEL_COLUMN", "LABEL_SEPARATOR") if columns else ():
            if getattr(self, key):
                yield f"LABEL_COLUMNS: {key} has no effect with it. Set one of them."


@dataclass
class ShardOptions(ColumnOptions, IndexOptions):
    """Of archives of samples."""


@dataclass
class StreamOptions:
    """Of sources that can only be read from one end to the other."""

    # Images of an epoch; a stream does not say how many it holds.
    LENGTH: int = at_least(0, 0)
    # So many of a lane are shuffled at a time; each loader worker keeps them in memory, encoded.
    SHUFFLE: int = at_least(1, 1000)
    # What each rank reads at a time; with another number batches differ. 0: as many as
    # NUM_DATALOADER_WORKERS, or as there are shards for each rank.
    LANES: int = at_least(0, 0)
    # What holds the image.
    IMAGE_COLUMN: str = ""
    # What holds the label.
    LABEL_COLUMN: str = ""
    # With labels: the names of the classes in the order of their numbers, or how many there are.
    CLASSES: Any = ""

    def check(self) -> Iterator[str]:
        listed = isinstance(self.CLASSES, list) and len({*map(str, self.CLASSES)}) > 1
        if self.CLASSES != "" and not listed and not isinstance(self.CLASSES, int):
            yield f"CLASSES: expected two names or more, or a number; got {self.CLASSES!r}."


@dataclass
class HubStreamOptions(StreamOptions):
    """Of datasets of the Hugging Face hub."""

    # Of a dataset that has several configurations.
    CONFIGURATION: str = ""
    # The split of the dataset.
    HUB_SPLIT: str = "train"


@dataclass
class VideoOptions(IndexOptions):
    """Of videos."""

    # Every so many frames of a video one is an image.
    FRAME_STRIDE: int = at_least(1, 30)


@dataclass
class SyntheticOptions:
    """Of generated images without content."""

    # Noise instead of grey.
    RANDOM_SYNTHETIC_IMAGES: bool = False
    # Labels 0..N-1; with 0 every label is 0.
    RANDOM_SYNTHETIC_LABELS: int = 0


@hosts(DATA_SOURCES, "DATA_SOURCES")
@dataclass
class SplitOptions:
    """One of DATA.TRAIN and DATA.TEST."""

    # What images are read from: disk_folder, disk_filelist, shapes, ... One for each dataset.
    DATA_SOURCES: list[str] = named(DATA_SOURCES, [])
    # A folder, a file list; wins over DATASET_NAMES.
    DATA_PATHS: list[str] = field(default_factory=list)
    # Names of a catalogue (VISSL's dataset_catalog.json), or of a torchvision dataset.
    DATASET_NAMES: list[str] = field(default_factory=list)
    # What labels are read from; as a rule the same as DATA_SOURCES.
    LABEL_SOURCES: list[str] = field(default_factory=list)
    # A file of labels for each source; empty: those that the source has itself.
    LABEL_PATHS: list[str] = field(default_factory=list)
    # Further values of each image: columns of tables and datasets, members of tar
    # samples (txt, npy, seg.png) or keys of their .json, what a source knows. No transform changes
    # them: batch["caption"] has an entry an image, text in a list, all else in a tensor.
    FIELDS: list[str] = field(default_factory=list)
    # standard: from LABEL_SOURCES; sample_index: the image's number; zero.
    LABEL_TYPE: str = choice("standard", "sample_index", "zero")
    # Images in a batch of each rank.
    BATCHSIZE_PER_REPLICA: int = at_least(1, 256)
    # Leave out the last batch of an epoch if it is smaller than the others.
    DROP_LAST: bool = False
    # What is done to an image, in this order: entries with a name and arguments.
    TRANSFORMS: list[Any] = named(TRANSFORMS, [], alone=lambda name: {"name": name})
    # What makes a batch of samples.
    COLLATE_FUNCTION: str = named(COLLATORS, "default_collate", "COLLATE_FUNCTION_PARAMS")
    # Its arguments.
    COLLATE_FUNCTION_PARAMS: dict[str, Any] = field(default_factory=dict)
    # Keys of the sample that hold images.
    INPUT_KEY_NAMES: list[str] = field(default_factory=lambda: ["data"])
    # Keys of the sample that hold labels.
    TARGET_KEY_NAMES: list[str] = field(default_factory=lambda: ["label"])
    # Use so many samples; -1: all.
    DATA_LIMIT: int = at_least(1, -1, also=-1)
    DATA_LIMIT_SAMPLING: DataLimitSampling = field(default_factory=DataLimitSampling)
    # An epoch in several phases, each over its share of the data.
    TRAIN_PHASES_PER_EPOCH: int = at_least(1, 1)
    # Side of generated images.
    DEFAULT_GRAY_IMG_SIZE: int = at_least(1, 224)
    # An image with more pixels counts as unreadable, before its pixels take any memory. A pixel of
    # more than 4 bytes (RGB of 16 bits has 6, RGBA 8) counts as several. Default: 512 MiB.
    MAX_IMAGE_PIXELS: int = at_least(1, 2**27)
    # RGB; L, grey levels; stored, as the file has them, with any number of channels.
    IMAGE_MODE: str = choice("RGB", "L", "stored")
    # Of images with more than 8 bits in modes RGB and L: the values that become black and white,
    # [0, 4095]; shares of each image's values, [1%, 99%]; image, its least and greatest; type,
    # those of its type. Without it such images are refused. 8-bit images do not change. In mode
    # stored: the limits of what transforms make of images of more than 8 bits, [0, 4095].
    PIXEL_RANGE: Any = ""
    # What is seen through transparent pixels in modes RGB and L: white, black, another colour by
    # its name, as '#rrggbb' or [red, green, blue]; drop: the colours that the file has below its
    # transparency, as in VISSL. Mode stored keeps the alpha of a file as one of its bands.
    TRANSPARENT: Any = "white"
    # Of files with several pages: the number of one, from 0; all, with mode stored, makes bands of
    # them. null: the first frame of an animation, and no stack in mode stored.
    IMAGE_PAGE: int | str | None = at_least(0, None, also="all")
    # Turn images as their EXIF data says. VISSL does not.
    EXIF_ROTATION: bool = False
    # A read error is no verdict: so many more attempts.
    READ_RETRIES: int = at_least(0, 3)
    # Seconds before the first of them; each later wait is twice as long.
    READ_RETRY_WAIT: float = at_least(0, 0.5)
    # If more of the latest 2000 images cannot be read, the run ends; 1: it never does.
    MAX_INVALID_SHARE: float = share(0.05)
    # Copy what DATA_PATHS names into a folder of each node, and read that.
    COPY_TO_LOCAL_DISK: bool = False
    # The folder of COPY_TO_LOCAL_DISK.
    COPY_DESTINATION_DIR: str = ""
    # For training too: the samples in their order, the same in every epoch.
    USE_DEBUGGING_SAMPLER: bool = False
    STRATIFIED_SAMPLER: StratifiedSampler = field(default_factory=StratifiedSampler)
    POWER_LAW_SAMPLER: PowerLawSampler = field(default_factory=PowerLawSampler)

    def check(self) -> Iterator[str]:
        yield from self._pixel_problems()
        yield from self._source_problems()
        yield from self._sampler_problems()
        if self.COPY_TO_LOCAL_DISK and not self.COPY_DESTINATION_DIR:
            yield "COPY_DESTINATION_DIR: COPY_TO_LOCAL_DISK needs a folder on a disk of each node."

    def _pixel_problems(self) -> Iterator[str]:
        try:
            parse_colour(self.TRANSPARENT)
        except ValueError as error:
            yield f"TRANSPARENT: {error}"
        try:
            given = PixelRange.parse(self.PIXEL_RANGE)
        except ValueError as error:
            yield f"PIXEL_RANGE: {error}"
            return
        if given is not None and given.limits is None and self.IMAGE_MODE == "stored":
            yield (
                "PIXEL_RANGE: mode stored keeps all values. Give the limits of what transforms "
                f"make of them, [low, high], or nothing; got {self.PIXEL_RANGE!r}."
            )
        if self.IMAGE_PAGE == "all" and self.IMAGE_MODE != "stored":
            yield "IMAGE_PAGE: all makes bands of pages, which takes IMAGE_MODE stored."

    @property
    def limits(self) -> tuple[float, float] | None:
        """Return those of what transforms make of arrays."""
        given = PixelRange.parse(self.PIXEL_RANGE) if self.IMAGE_MODE == "stored" else None
        return given.limits if given else None

    @property
    def chooses_by_class(self) -> bool:
        """Tell whether the classes of images are needed even where samples carry other labels."""
        return (
            self.DATA_LIMIT_SAMPLING.IS_BALANCED
            or self.DATA_LIMIT_SAMPLING.SHARE > 0
            or self.STRATIFIED_SAMPLER.ENABLED
            or self.POWER_LAW_SAMPLER.ENABLED
        )

    def _sampler_problems(self) -> Iterator[str]:
        stratified = self.STRATIFIED_SAMPLER
        enabled = (
            stratified.ENABLED, self.POWER_LAW_SAMPLER.ENABLED, self.USE_DEBUGGING_SAMPLER
        )  # fmt: skip
        if sum(enabled) > 1:
            yield (
                "STRATIFIED_SAMPLER, POWER_LAW_SAMPLER, USE_DEBUGGING_SAMPLER: set one of them at "
                "most."
            )
        classes = stratified.CLASSES_PER_BATCH
        if stratified.ENABLED and classes > 0 and self.BATCHSIZE_PER_REPLICA % classes:
            yield (
                f"STRATIFIED_SAMPLER.CLASSES_PER_BATCH: {classes} classes "
                f"cannot share the {self.BATCHSIZE_PER_REPLICA} of BATCHSIZE_PER_REPLICA evenly."
            )

    def check_chosen(self) -> Iterator[str]:
        yield from self._options_nobody_reads()
        yield from self._stream_problems()
        for position, (source, path) in enumerate(zip(self.DATA_SOURCES, self.DATA_PATHS)):
            if path and source in DATA_SOURCES and not DATA_SOURCES.get(source).needs_path:
                yield (
                    f"DATA_PATHS.{position}: the source {source!r} makes its images and reads no "
                    f"{path!r}. For images of your own set DATA_SOURCES to disk_folder."
                )

    def _stream_problems(self) -> Iterator[str]:
        known = [DATA_SOURCES.get(each) for each in self.DATA_SOURCES if each in DATA_SOURCES]
        if not any(getattr(each, "is_stream", False) for each in known):
            return
        name = " and ".join(self.DATA_SOURCES)
        if len(self.DATA_SOURCES) > 1:
            yield f"DATA_SOURCES: a stream cannot be combined with another source; got {name}."
        if self.LABEL_TYPE == "sample_index":
            yield (
                f"LABEL_TYPE: {name} is a stream, whose samples have no numbers; expected zero, or "
                f"standard with LABEL_SOURCES: [{name}]; got sample_index. A method that needs "
                f"sample_index takes data with random access."
            )
        if self.LABEL_PATHS:
            yield f"LABEL_PATHS: {name} is a stream, in which labels are beside their images."
        default = type(self)()
        for key in ("DATA_LIMIT", "DATA_LIMIT_SAMPLING", "STRATIFIED_SAMPLER", "POWER_LAW_SAMPLER",
                    "USE_DEBUGGING_SAMPLER", "COPY_TO_LOCAL_DISK"):  # fmt: skip
            if getattr(self, key) != getattr(default, key):
                yield f"{key}: has no effect on {name}, which is a stream. LENGTH is its epoch."

    def _options_nobody_reads(self) -> Iterator[str]:
        default = type(self)()
        set_here = [
            key for key in OF_ENCODED_SOURCES if getattr(self, key) != getattr(default, key)
        ]
        if not set_here or not all(name in DATA_SOURCES for name in self.DATA_SOURCES):
            return
        read = [DATA_SOURCES.get(name).reads for name in self.DATA_SOURCES]
        for key in set_here:
            if read and not any(each is None or key in each for each in read):
                yield (
                    f"{key}: {' and '.join(self.DATA_SOURCES)} does not read it; leave it at "
                    f"{getattr(default, key)!r}."
                )

    def _source_problems(self) -> Iterator[str]:
        """Do the lists that say where the data comes from fit each other?"""
        count = len(self.DATA_SOURCES)
        for key in ("DATA_PATHS", "LABEL_SOURCES", "LABEL_PATHS"):
            given = len(getattr(self, key))
            if given not in (0, count):
                yield f"{key}: expected one for each of the {count} DATA_SOURCES, got {given}."
        for position, (source, label) in enumerate(zip(self.DATA_SOURCES, self.LABEL_SOURCES)):
            if label not in (source, "disk_filelist"):
                yield (
                    f"LABEL_SOURCES.{position}: {label!r} does not go with the data source "
                    f"{source!r}; expected {source!r}, or disk_filelist with LABEL_PATHS."
                )


def own(options: object, cls: type[C]) -> C:
    """Return those options of a split that a source brings; one made in Python may lack them."""
    return options if isinstance(options, cls) else cls()


def split_options(**keys: Any) -> SplitOptions:
    """Options of a split that is made in Python, with those of any source."""
    return join(SplitOptions)(**keys)


@dataclass
class HoldOut:
    """A share of TRAIN's images is TEST, and is not trained on; see manifest/subset.py."""

    # 0: TEST has its own images; 0.1: a tenth of TRAIN's.
    SHARE: float = at_least(0, 0.0, below=1)
    # Another draw of the images.
    SEED: int = 0
    # The share of every class; needs LABEL_SOURCES.
    STRATIFIED: bool = False
    # Of tables and Hugging Face datasets: images with the same value here are in one split.
    GROUP_COLUMN: str = ""

    def read_as(self, split: str) -> str:
        """The split that the images of one are stored in: TEST's are a part of TRAIN's."""
        return "TRAIN" if self.SHARE else split

    def check(self) -> Iterator[str]:
        if self.GROUP_COLUMN and self.STRATIFIED:
            yield "STRATIFIED: not together with GROUP_COLUMN, whose groups are kept whole."
        if not self.SHARE and (self.GROUP_COLUMN or self.STRATIFIED or self.SEED):
            yield "SHARE: with 0 nothing is held out, and the other keys have no effect."


@section("DATA")
@dataclass
class DataOptions:
    # The training set.
    TRAIN: SplitOptions = field(default_factory=SplitOptions)
    # The set of test phases.
    TEST: SplitOptions = field(default_factory=SplitOptions)
    # A share of TRAIN's images as TEST.
    HOLD_OUT: HoldOut = field(default_factory=HoldOut)
    # Processes of each rank that load images; 0: the rank loads them itself.
    NUM_DATALOADER_WORKERS: int = at_least(0, 4)
    # Batches that each worker prepares ahead.
    PREFETCH_FACTOR: int = at_least(1, 2)
    # Seconds without any batch from the workers after which the run ends; 0: it waits for ever.
    WORKER_TIMEOUT: float = at_least(0, 1800.0)
    # Keep batches in memory from which a GPU copies faster.
    PIN_MEMORY: bool = True
    # Copy the next batch to the GPU while the current one is computed on.
    ENABLE_ASYNC_GPU_COPY: bool = True
    # What makes the pixels of augmented images; auto: the fastest that is installed.
    AUGMENT_BACKEND: str = "auto"
    # Of gradients that DDP reduces together, in MiB.
    DDP_BUCKET_CAP_MB: int = 25

    def check_chosen(self) -> Iterator[str]:
        for split in ("TRAIN", "TEST") if self.HOLD_OUT.SHARE else ("TEST",):
            for name in getattr(self, split).DATA_SOURCES:
                if name in DATA_SOURCES and getattr(DATA_SOURCES.get(name), "is_stream", False):
                    yield (
                        f"{split}.DATA_SOURCES: {name} is a stream, of which no part can be held "
                        f"out or tested on. Name a source with random access for TEST."
                    )

    def check(self) -> Iterator[str]:
        if problem := why_not(self.AUGMENT_BACKEND):
            yield f"AUGMENT_BACKEND: {problem}"
