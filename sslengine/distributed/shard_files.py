"""Sharded checkpoints: a folder with one file per rank (torch.distributed.checkpoint).

    rest.torch           all that is not sharded, with marks in place of shards
    __<rank>_0.distcp    the shards of a rank
    .metadata            which part of which tensor is in which file

Any number of ranks can read the folder, sharded or whole. torch would unpickle `.metadata`
without restriction, which can run code; here only torch's record classes are allowed.

torch.distributed.checkpoint is imported on first use: the import takes a second of CPU time.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from sslengine.distributed.process_group import Group
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.sharding import make_dtensor
from sslengine.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

Thing = TypeVar("Thing")

REST, METADATA = "rest.torch", ".metadata"
_MARK = "__shares_of__"
_RECORDS = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": (
        "Size", "float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool",
    ),
    "pathlib": ("PosixPath", "PurePosixPath", "Path"),
    "pathlib._local": ("PosixPath",),
}  # fmt: skip


class Peers:
    """A separate process group of all ranks for threads that write checkpoints, so that their
    messages do not mix with those of training."""

    def __init__(self) -> None:
        """Collective."""
        from torch.distributed.device_mesh import DeviceMesh

        self.group = cast(Group, dist.new_group(backend="gloo"))
        self.mesh = DeviceMesh.from_group(self.group, "cpu")

    def agree(self, action: Callable[[], Thing], everyone: bool = True) -> list[Thing]:
        """Call `action` on every rank, or on rank 0 only; if it fails on one, all raise its
        error."""
        result, problem = None, ""
        try:
            result = action() if everyone or rank() == 0 else None
        except Exception as error:
            problem = f"{getattr(error, 'strerror', None) or error or type(error).__name__}"
            problem += f" (rank {rank()})" if rank() else ""
        answers: list[Any] = [None] * world_size()
        dist.all_gather_object(answers, (result, problem), group=self.group)
        problems = [each for _, each in answers if each]
        if problems:
            raise CheckpointError(problems[0])
        return [each for each, _ in answers]


@dataclass(eq=False)
class Share:
    """This rank's rows of a tensor, on the host."""

    rows: Tensor
    shape: torch.Size
    stride: tuple[int, ...]


def split(state: Any) -> tuple[Any, dict[str, Share]]:
    """Return the state with marks in place of shares, and the shares by their marks."""
    shares: dict[str, Share] = {}
    marks: dict[int, str] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Share):
            mark = marks.setdefault(id(value), path)  # a tensor that occurs twice is stored once
            shares[mark] = value
            return {_MARK: mark}
        if isinstance(value, Mapping):
            return {key: walk(each, f"{path}/{key}") for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(walk(each, f"{path}/{n}") for n, each in enumerate(value))
        return value

    return walk(state, ""), shares


def write_folder(folder: Path, rest: Any, shares: Mapping[str, Share], peers: Peers) -> list[str]:
    """Write this rank's part into an empty folder and return the names of its files. Collective:
    one thread of each rank calls it."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    tensors = {
        mark: make_dtensor(each.rows, each.shape, each.stride, peers.mesh)
        for mark, each in shares.items()
    }
    writer = FileSystemWriter(folder, sync_files=True)
    # torch 2.6 causes this warning by itself.
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
    save(tensors, storage_writer=writer, process_group=peers.group)
    mine = [path.name for path in folder.glob(f"__{rank()}_*")]
    if rank() == 0:
        torch.save(rest, folder / REST)
        mine += [REST, METADATA]
    return mine


def is_folder_of_shards(path: Path) -> bool:
    return (path / REST).is_file()


def read_folder(folder: Path, peers: Peers | None = None, without: Collection[str] = ()) -> Any:
    """Read the state: sharded over the ranks of `peers`, or whole without it. Not collective.

    without: keys of mappings that are not read, with everything below them.
    """
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    rest = torch.load(folder / REST, map_location="cpu", weights_only=True, mmap=peers is not None)
    reader = FileSystemReader(folder)
    reader.read_metadata = partial(_metadata, folder)  # type: ignore[method-assign]
    known = _metadata(folder).state_dict_metadata
    tensors: dict[str, Tensor] = {}

    def fill(value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {_MARK}:
            mark = value[_MARK]
            if mark not in tensors:
                tensors[mark] = _empty(known.get(mark), mark, peers)
            return tensors[mark]
        if isinstance(value, dict):
            return {key: fill(each) for key, each in value.items() if key not in without}
        return type(value)(map(fill, value)) if isinstance(value, (list, tuple)) else value

    state = fill(rest)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    if tensors:
        _load_state_dict(tensors, reader, no_dist=True, planner=planner)
    return state


def _empty(record: Any, mark: str, peers: Peers | None) -> Tensor:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    if not isinstance(record, TensorStorageMetadata):
        raise CheckpointError(f"{METADATA} does not know the tensor {mark}.")
    shape, dtype = record.size, record.properties.dtype
    if peers is None:
        return torch.empty(shape, dtype=dtype)
    rows = -(-shape[0] // world_size())
    mine = max(0, min(rows, shape[0] - rank() * rows))
    stride = torch.empty(shape, device="meta").stride()
    return make_dtensor(torch.empty((mine, *shape[1:]), dtype=dtype), shape, stride, peers.mesh)


def _metadata(folder: Path, *_: Any, **__: Any) -> Metadata:
    content = (folder / METADATA).read_bytes()
    return cast("Metadata", _Records(io.BytesIO(content)).load())


class _Records(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _RECORDS.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member  # Python 3.11.0 to 3.11.3 pickle the members of an Enum with it
        raise CheckpointError(
            f"{METADATA} contains {module}.{name}, which is not a record class of torch. No code "
            f"from the file was run."
        )


def _member(kind: Any, name: Any) -> Any:
    """Look up a member of an Enum, as getattr does; nothing else."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind[name]
    raise CheckpointError(
        f"{METADATA} contains {name!r} of {kind!r}, which is not a record class of torch. No code "
        f"from the file was run."
    )
