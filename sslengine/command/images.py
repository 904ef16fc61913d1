"""What a path that a user gives is read by."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from sslengine import catalog  # noqa: F401 - declares the names of sources
from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import DataSource, build_sources
from sslengine.data.sources.disk import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from sslengine.data.sources.paths import how_far
from sslengine.data.sources.tables import IMAGE_NAMES, open_table
from sslengine.errors import DataError, listing

BY_ENDING = {
    ".csv": "csv_filelist", ".tsv": "csv_filelist", ".npy": "array_file", ".npz": "array_file",
    ".tar": "webdataset", ".gz": "array_file", **dict.fromkeys(VIDEO_SUFFIXES, "video"),
}  # fmt: skip


class Images(NamedTuple):
    path: Path
    source: DataSource
    name: str  # of the source

    @property
    def has_classes(self) -> bool:
        return self.source.num_classes > 1

    def stored(self) -> Images:
        """The same images with the values of their files."""
        options = SplitOptions(
            DATA_SOURCES=[self.name], DATA_PATHS=[str(self.path)], IMAGE_MODE="stored"
        )
        (source,) = build_sources(options, "TRAIN")
        return self._replace(source=source)

    def keys(self, split: str = "TRAIN", labels: bool = False) -> dict[str, Any]:
        """Keys of the config, without those of another source that were there."""
        made = {
            "DATA_SOURCES": [self.name],
            "DATA_PATHS": [str(self.path)],
            "LABEL_SOURCES": [self.name] if self.has_classes else [],
            "LABEL_TYPE": "standard" if labels else "sample_index",
        }
        return {f"DATA.{split}.{key}": value for key, value in made.items()}


def look(given: str) -> Images:
    """Raises if there is no image."""
    if "://" in given:
        raise DataError(
            f"{given}: DATA is a folder or file here. Shards on a server are a stream, for which "
            f"a config needs the number of images too: config=photos/METHOD "
            f"config.DATA.TRAIN.DATA_SOURCES=[webdataset_stream], DATA_PATHS, LENGTH, "
            f"LABEL_TYPE=zero (docs/data_sources.md)."
        )
    path = Path(given).expanduser().absolute()
    if not path.exists():
        raise DataError(f"{given}: there is no such folder or file: {how_far(path)}")
    name = source_of(path)
    (source,) = build_sources(SplitOptions(DATA_SOURCES=[name], DATA_PATHS=[str(path)]), "TRAIN")
    if not len(source):
        raise DataError(f"{given}: it holds no image.")
    return Images(path, source, name)


def source_of(path: Path) -> str:
    """The name of the source, by the endings of files."""
    if path.is_dir():
        return _of_folder(path)
    if path.suffix == ".parquet":
        return "csv_filelist" if _holds_paths(path) else "huggingface_dataset"
    if path.suffix not in BY_ENDING:
        raise DataError(
            f"{path}: expected a folder of images, or a file that ends in "
            f"{listing([*BY_ENDING, '.parquet'])}."
        )
    return BY_ENDING[path.suffix]


def _of_folder(path: Path) -> str:
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        return "huggingface_dataset"
    if any(path.glob("*.tar")):
        return "webdataset"
    if any(path.glob("*.parquet")) or any(path.glob("data/*.parquet")):
        return "huggingface_dataset"
    if any(path.glob("*-images-idx3-ubyte*")):
        return "array_file"
    endings = (each.suffix.lower() for each in path.rglob("*"))
    first = next((each for each in endings if each in IMAGE_SUFFIXES + VIDEO_SUFFIXES), "")
    return "video" if first in VIDEO_SUFFIXES else "disk_folder"


def _holds_paths(path: Path) -> bool:
    names, rows = open_table(path)
    usual = [number for number, name in enumerate(names) if name.lower() in IMAGE_NAMES]
    first = next(iter(rows(usual[:1])), ("",)) if usual else (b"",)
    return isinstance(first[0], str)
