"""A Dataset of the package `datasets`, as a folder that the source huggingface_dataset reads.

What load_from_disk returned, and was not changed since, is its own folder. Anything else is written
by save_to_disk, with the images of files in it.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from sslengine.data.sources.hugging_face import quiet
from sslengine.errors import ConfigError, DataError, listing

log = logging.getLogger("sslengine")


class HuggingFaceRows(Protocol):
    """A Dataset or a DatasetDict, without importing the package."""

    @property
    def column_names(self) -> Any: ...
    @property
    def num_rows(self) -> Any: ...


def is_of_datasets(given: Any) -> bool:
    package: Any = sys.modules.get("datasets")
    return package is not None and isinstance(given, package.Dataset | package.DatasetDict)


def rows_on_disk(data: Any, folder: Path) -> Path:
    """Of a DatasetDict its split `train`, as of a folder of one."""
    rows = _train_of(data) if isinstance(data, dict) else data
    if not len(rows):
        raise DataError("data: it holds no image.")
    if rows.format["type"] == "custom":
        raise ConfigError(
            "data: the Dataset has a transform (set_transform), which would have no effect: the "
            "recipe augments images. Give data.with_format(None)."
        )
    return _saved_at(rows) or _saved(rows, folder / "rows")


def _train_of(splits: Any) -> Any:
    if "train" not in splits:
        raise ConfigError(
            f"data: the DatasetDict has no split train; it has {listing(splits)}. Give one of "
            f'them: data["{min(splits, default="train")}"].'
        )
    return splits["train"]


def _saved_at(rows: Any) -> Path | None:
    """The folder that holds the unchanged rows: loaded again it has the same fingerprint."""
    package: Any = sys.modules["datasets"]
    for folder in {Path(file["filename"]).parent for file in rows.cache_files}:
        with suppress(OSError, ValueError, KeyError):
            if package.load_from_disk(str(folder))._fingerprint == rows._fingerprint:
                return folder
    return None


def _saved(rows: Any, folder: Path) -> Path:
    log.info(
        "data: a copy of %d rows in %s. Without a copy: save_to_disk once, and give the folder",
        len(rows),
        folder.parent,
    )
    try:
        with quiet():
            rows.with_format(None).save_to_disk(str(folder))
    except OSError:
        raise
    except Exception as error:  # of pyarrow and of `datasets`
        raise DataError(f"data: `datasets` cannot save it: {error}") from error
    return folder
