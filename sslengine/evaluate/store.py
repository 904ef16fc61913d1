"""Features on disk: computed once, read by every protocol without loading them whole.

    store = Store.open(folder, depends_on, samples)
    for shard in store.missing(): store.write(shard, layers, targets, indices)
    store.layer("flatten")[0:512]                            # a tensor

A folder has `manifest.json`, which says what the features depend on, and shards. A shard is a fixed
range of the dataset, whichever rank computes it, so the files are the same for any number of ranks,
and a run that was killed computes only the shards that are missing. A shard is complete when its
`indices` are there; they are the image numbers of its rows (an image that cannot be read has none).
`rows.csv` has the same numbers with the paths of the images below the folder of their source.

`Kept` has results of the parts of a long protocol: after a kill only what is missing is computed.

    kept = Kept(folder, depends_on=digest(features, labels, options))
    part = kept.get("cls3") or kept.put("cls3", {"weights": ...})
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.atomic import make_folder, whole_file, write_whole
from sslengine.errors import DataError, listing

FORMAT = 1
MANIFEST = "manifest.json"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Images of a shard: a power of two, so that batches fill it, and at least 16 shards of a large set.
SMALLEST, LARGEST = 256, 4096
INDICES, TARGETS = "indices", "targets"
ROWS = "rows.csv"


def short_name(depends_on: Mapping[str, Any]) -> str:
    """Return a short name that is different where the features are."""
    return hashlib.sha256(_json(depends_on)).hexdigest()[:12]


@dataclass(frozen=True)
class Shard:
    number: int
    images: range


class StoredRows:
    """Rows of several memory-mapped files, as if they were one matrix."""

    def __init__(self, parts: list[NDArray[Any]], stored_as: str = "") -> None:
        """stored_as: the name of a type that numpy does not have."""
        self._parts = parts
        self._view = DTYPES[stored_as] if stored_as == "bfloat16" else None
        self._ends = list(accumulate(len(part) for part in parts))
        self.shape = torch.Size([self._ends[-1], *parts[0].shape[1:]])

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, rows: slice) -> Tensor:
        start, stop, step = rows.indices(len(self))
        assert step == 1
        read = []
        for part, end in zip(self._parts, self._ends):
            first = end - len(part)
            if first < stop and start < end:
                some = part[max(start - first, 0) : stop - first]
                read.append(torch.from_numpy(np.array(some)))
        found = torch.cat(read) if read else torch.from_numpy(np.array(self._parts[0][:0]))
        return found if self._view is None else found.view(self._view)

    def tensor(self) -> Tensor:
        return self[:]


@dataclass(frozen=True)
class Store:
    folder: Path
    samples: int
    dtype: str = "float32"
    shard: int = SMALLEST
    depends_on: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def make(
        cls, folder: Path, depends_on: Mapping[str, Any], samples: int, dtype: str = "float32"
    ) -> Store:
        """Make a store, or read the one that is there; any rank may call it."""
        if (folder / MANIFEST).exists():
            found = cls.read(folder)
            if found.depends_on == json.loads(_json(depends_on)) and found.samples == samples:
                return found
            raise DataError(f"{folder}: holds features of something else; choose another folder.")
        shard = min(LARGEST, max(SMALLEST, 1 << (samples // 16).bit_length()))
        new = cls(folder, samples, dtype, shard, json.loads(_json(depends_on)))
        make_folder(folder)
        known = {key: value for key, value in vars(new).items() if key != "folder"}
        write_whole(folder / MANIFEST, _json({"format": FORMAT, **known}) + b"\n")
        return new

    @classmethod
    def read(cls, folder: Path) -> Store:
        path = folder / MANIFEST
        try:
            held = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise DataError(f"{folder}: is no folder of features: it has no {MANIFEST}.") from None
        except ValueError as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        if held.pop("format", None) != FORMAT:
            raise DataError(f"{path}: expected format {FORMAT}, written by this version.")
        return cls(folder, **held)

    # ---- write

    def shards(self) -> list[Shard]:
        starts = range(0, self.samples, self.shard)
        ends = [min(start + self.shard, self.samples) for start in starts]
        return [Shard(number, range(*each)) for number, each in enumerate(zip(starts, ends))]

    def missing(self) -> list[Shard]:
        return [each for each in self.shards() if not self._path(each.number, INDICES).exists()]

    def write(
        self,
        shard: Shard,
        layers: Mapping[str, Tensor],
        targets: Tensor,
        indices: Tensor,
        paths: Sequence[str] = (),
    ) -> None:
        """Write a shard. paths: where the images of its rows are."""
        for name, rows in layers.items():
            with whole_file(self._path(shard.number, file_name(name))) as file:
                _save(file, rows.to(DTYPES[self.dtype]))
        with whole_file(self._path(shard.number, TARGETS)) as file:
            _save(file, targets)
        if paths:
            write_whole(self._table(shard.number), _table(indices, paths))
        with whole_file(self._path(shard.number, INDICES)) as file:  # last: now it is complete
            _save(file, indices)

    # ---- read

    @cached_property
    def layers(self) -> list[str]:
        """The layers' names, as in files."""
        first = self.folder.glob("00000.*.npy")
        names = {path.name.removeprefix("00000.").removesuffix(".npy") for path in first}
        return sorted(names - {INDICES, TARGETS})

    def layer(self, name: str) -> StoredRows:
        if (wanted := file_name(name)) not in self.layers:
            raise DataError(
                f"{self.folder}: has no features {name!r}; expected {listing(self.layers)}."
            )
        return StoredRows(self._parts(wanted), self.dtype)

    @cached_property
    def targets(self) -> Tensor:
        return StoredRows(self._parts(TARGETS)).tensor()

    @cached_property
    def indices(self) -> Tensor:
        return StoredRows(self._parts(INDICES)).tensor()

    @cached_property
    def paths(self) -> list[str]:
        """The paths of the images of all rows."""
        found: list[str] = []
        for each in self.shards():
            if not (path := self._table(each.number)).exists():
                raise DataError(f"{path}: is missing: the store has no paths of images.")
            with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
                found += [row["path"] for row in csv.DictReader(file)]
        return found

    def _parts(self, name: str) -> list[NDArray[Any]]:
        if lacking := self.missing():
            raise DataError(
                f"{self.folder}: {len(lacking)} of {len(self.shards())} shards are missing; "
                f"extraction has not ended."
            )
        paths = [self._path(each.number, name) for each in self.shards()]
        parts = [_mapped(path) for path in paths]
        filled = [part for part in parts if len(part)]  # no image of a shard could be read
        return filled or parts[:1]

    def _path(self, number: int, name: str) -> Path:
        return self.folder / f"{number:05d}.{name}.npy"

    def _table(self, number: int) -> Path:
        return self.folder / f"{number:05d}.{ROWS}"


def file_name(layer: str) -> str:
    return re.sub(r"[^\w.-]+", "_", layer)


def _table(indices: Tensor, paths: Sequence[str]) -> bytes:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["index", "path"])
    table.writerows(zip(indices.tolist(), paths, strict=True))
    return text.getvalue().encode(errors="surrogateescape")


def _save(file: BinaryIO, rows: Tensor) -> None:
    if rows.dtype == torch.bfloat16:  # unknown to numpy
        rows = rows.view(torch.int16)
    np.save(file, rows.contiguous().cpu().numpy(), allow_pickle=False)


def _mapped(path: Path) -> NDArray[Any]:
    try:
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path}: cannot be read: {error}. Remove it: it is computed again."
        ) from error
    return mapped


def _json(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, default=str).encode()


# ---- parts of a protocol


class Kept:
    def __init__(self, folder: Path, depends_on: str, again: bool = False) -> None:
        """again: compute each part once more."""
        self.folder, self._of, self._again = folder, depends_on, again

    def get(self, name: str) -> Mapping[str, Any] | None:
        """Return a part; None: it is missing, or depends on something else."""
        if self._again:
            return None
        try:
            with np.load(self.folder / f"{name}.npz", allow_pickle=False) as file:
                held = dict(file)
        except (OSError, ValueError, BadZipFile):
            return None
        return held if str(held.pop("depends_on", "")) == self._of else None

    def put(self, name: str, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        whole: dict[str, Any] = {"depends_on": np.array(self._of), **arrays}
        with whole_file(self.folder / f"{name}.npz") as file:
            np.savez(file, **whole)
        return arrays


def digest(*parts: NDArray[Any] | str) -> str:
    """Return a name of texts and arrays that is different where these are."""
    whole = hashlib.sha256()
    for each in parts:
        some = each.encode() if isinstance(each, str) else np.ascontiguousarray(each).tobytes()
        whole.update(hashlib.sha256(some).digest())
    return whole.hexdigest()
